"""An all-reduce over all nodes as data: the collective that every decode step of a model ends in.

Nothing runs here. Each rank runs the engine's own Python with the variables that a launch would
give it, so that what is measured is what will serve; neither MPI nor nccl-tests is needed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sparkserve.engine import env
from sparkserve.model.base import Model
from sparkserve.model.place import Place
from sparkserve.model.profile import Profile

PORT = 18_700
"""Where rank 0 waits for the others; above the listeners of pair tests."""
SIZES_BYTES = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Small ones first: a collective of 16 GB has frozen a node."""
LIMIT_S = 90.0
"""Start of torch, the meeting of the ranks and all sizes."""
_OF_NETWORK = ("NCCL_", "GLOO_", "UCX_")
# Rows as nccl-tests prints them: size, count, type, operation, root, time, algbw, busbw, wrong.
_SCRIPT = """\
import datetime, sys, time
import torch, torch.distributed as dist
rank, world, meeting, sizes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
gpu = torch.cuda.is_available()
device = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else "cpu"
if gpu: torch.cuda.set_device(device)
print("backend", "nccl" if gpu else "gloo", flush=True)
dist.init_process_group("nccl" if gpu else "gloo", init_method="tcp://" + meeting, rank=rank,
                        world_size=world, timeout=datetime.timedelta(seconds=40))
done = torch.cuda.synchronize if gpu else (lambda: None)
for size in map(int, sizes.split(",")):
    count = size // 4
    values = torch.full((count,), float(rank + 1), device=device)
    dist.all_reduce(values)
    wrong = int((values != world * (world + 1) / 2).sum())
    done(); start = time.perf_counter()
    for _ in range(5): dist.all_reduce(values.fill_(1.0))
    done(); took = (time.perf_counter() - start) / 5
    if rank == 0:
        algbw = size / took / 1e9
        busbw = algbw * 2 * (world - 1) / world
        print(f"{size} {count} float sum -1 {took * 1e6:.1f} {algbw:.4f} {busbw:.4f} {wrong}",
              flush=True)
dist.destroy_process_group()
"""


class RankTest(Model):
    """What one rank runs."""

    node: str
    command: str
    """POSIX shell, for one node."""


def all_reduce(profile: Profile, places: Sequence[Place]) -> tuple[RankTest, ...]:
    """One command per rank, all to be run at once; rank 0 prints the result.

    places: every node's, in rank order.
    """
    meeting = f"{places[0].address}:{PORT}"
    sizes = ",".join(str(size) for size in SIZES_BYTES)
    tests = []
    for rank, place in enumerate(places):
        variables = {
            name: value
            for name, value in env.render(profile, places, rank).items()
            if name.startswith(_OF_NETWORK)
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        words += [place.python, "-c", _SCRIPT, str(rank), str(len(places)), meeting, sizes]
        # A rank that nobody hears any more ends by itself.
        command = f"exec timeout -k 5 {LIMIT_S:.0f} env {shlex.join(words)}"
        tests.append(RankTest(node=place.name, command=command))
    return tuple(tests)
