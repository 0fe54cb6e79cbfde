"""How fast small pieces of a file are read at random, past the page cache."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from sparkserve.facts.probe import Context, UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.reading import Reading

_MOST_S = 0.3
_PROBE = """\
import glob, json, mmap, os, random, sys, threading, time
root, engram, model, limit = sys.argv[1:5]
def below(part, path):
    return path if path.startswith("/") else os.path.join(root, part, path)
found = []
if engram: found += glob.glob(os.path.join(below("engram", engram), "*.bin"))
if model: found += glob.glob(os.path.join(below("checkpoints", model), "*.safetensors"))
found = [f for f in found if os.path.getsize(f) >= 64 << 20]
def told(**values):
    print(json.dumps(values)); sys.exit(0)
if not found: told(reason="no shard and no checkpoint of 64 MiB or more to read from")
path = max(found, key=os.path.getsize)
try: fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
except OSError as error: told(path=path, reason="no direct reading: %s" % error.strerror)
dev = os.stat(path).st_dev
device = os.path.realpath("/sys/dev/block/%d:%d" % (os.major(dev), os.minor(dev)))
pages, end = os.path.getsize(path) // 4096, time.monotonic() + float(limit)
def read(counts, n):
    buffer, pick = mmap.mmap(-1, 4096), random.Random(os.getpid() * 100 + n)
    while time.monotonic() < end:
        try: os.preadv(fd, [buffer], pick.randrange(pages) * 4096)
        except OSError: return
        counts[n] += 1
pipes = []
for _ in range(8):
    r, w = os.pipe()
    if os.fork() == 0:
        counts = [0] * 8
        threads = [threading.Thread(target=read, args=(counts, n)) for n in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        os.write(w, b"%d" % sum(counts)); os._exit(0)
    os.close(w); pipes.append(r)
reads = sum(int(os.read(r, 20) or 0) for r in pipes)
told(path=path, device=device, iops=round(reads / float(limit)), queue_depth=64)
"""


class DiskSpeed(Fact):
    """Random reads of 4 KiB with O_DIRECT."""

    iops: int | None = None
    queue_depth: int | None = None
    path: str | None = None
    device: str | None = None
    """Where sysfs keeps the block device."""
    reason: str | None = None
    """Why nothing was measured."""

    @property
    def is_nvme(self) -> bool:
        """Whether the file lies on an NVMe disk itself, as far as sysfs tells."""
        return self.device is not None and re.search(r"/nvme\d", self.device) is not None


def _script(context: Context) -> str:
    words = [context.engram_dir or "", context.model_path or "", str(_MOST_S)]
    python = f'python3 -c {shlex.quote(_PROBE)} "$ROOT" {shlex.join(words)}'
    return f"command -v python3 >/dev/null 2>&1 || {{ echo 'no python3'; exit 3; }}; {python}"


def _parse(reading: Reading) -> Iterator[DiskSpeed]:
    line = next((one for one in reading.text.splitlines() if one.startswith("{")), None)
    if line is None:
        raise UnusableOutput(f"no figures: {reading.text.strip()[-100:] or 'no output'}")
    yield DiskSpeed.model_validate(json.loads(line))


def _fio(reading: Reading) -> Iterator[DiskSpeed]:
    """``fio`` and ``ioping`` in their usual words."""
    found = re.search(r"(?i)\bread:\s*IOPS=(\d+(?:\.\d+)?)(k?)", reading.text)
    depth = re.search(r"(?i)iodepth[=:]\s*(\d{1,4})", f"{reading.command} {reading.text}")
    if found is None:
        raise UnusableOutput("no line of IOPS")
    iops = round(float(found[1]) * (1000 if found[2] else 1))
    yield DiskSpeed(iops=iops, queue_depth=int(depth[1]) if depth else None)


READERS: tuple[Reader, ...] = (
    Reader("disk_speed.probe", (DiskSpeed,), _parse, whats=(r"random reads",)),
    Reader(
        "disk_speed.fio", (DiskSpeed,), _fio, commands=(r"fio .*\brandread\b.*",),
        whats=(r"fio(?: output)?",),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (Ask("disk_speed.probe", _script, what="random reads", format="json"),)
