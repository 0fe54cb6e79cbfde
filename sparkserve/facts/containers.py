"""Readers of what docker prints about itself, its images and its containers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparkserve.facts import docker_run
from sparkserve.facts.container_kinds import (
    Container,
    Containers,
    DockerDaemon,
    DockerInfo,
    Image,
    Images,
    Memlock,
    Mount,
    RdmaDevices,
)
from sparkserve.facts.docker_documents import (
    container_of,
    container_of_row,
    image_of,
    image_of_row,
    word,
)
from sparkserve.facts.docker_output import Call, documents, parse_call, table_rows
from sparkserve.facts.environment import Environment, environment_of
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, ask_command, bare_command
from sparkserve.model.reading import Reading

_REFUSED = (
    ("permission", r"(?i)permission denied while trying to connect to the docker"),
    ("permission", r"(?i)dial unix \S*docker\.sock: connect: permission denied"),
    ("not-running", r"(?i)cannot connect to the docker daemon|is the docker daemon running"),
    ("absent", r"(?i)docker: (?:command )?not found|command not found: docker"),
)


def docker_problem(reading: Reading) -> DockerDaemon | None:
    """How docker refused to answer; None where it answered."""
    lines = reading.text.splitlines()
    for problem, regex in _REFUSED:
        if told := next((line for line in lines if re.search(regex, line)), None):
            return DockerDaemon.model_validate({"problem": problem, "message": told.strip()})
    # Our own question for containers needs python3, too.
    if reading.rc == 127 and "python3" not in reading.text:
        return DockerDaemon(problem="absent", message=reading.text.strip()[:200])
    return None


def _refusal(reading: Reading) -> list[Fact]:
    refused = docker_problem(reading)
    return [] if refused is None else [refused]


def _docker(make: Callable[[Call, Reading], Iterable[Fact]]) -> Callable[[Reading], list[Fact]]:
    """A parser of docker's answers that first looks whether docker answered at all."""

    def parse(reading: Reading) -> list[Fact]:
        if (refused := docker_problem(reading)) is not None:
            return [refused]
        facts = list(make(parse_call(bare_command(reading.command or "")), reading))
        return [*facts, DockerDaemon()]

    return parse


def _listed(call: Call, reading: Reading) -> Iterator[Fact]:
    text = reading.text
    _refuse_error(text)
    quiet = any(re.fullmatch(r"-[a-z]*q[a-z]*|--quiet", option) for option in call.options)
    every = any(re.fullmatch(r"-[a-z]*a[a-z]*|--all", option) for option in call.options)
    if quiet:
        rows: list[dict[str, Any]] = [{"ID": word} for word in text.split()]
    elif call.template is None and text.strip():
        rows = _table(text)
    else:
        rows = documents(call, text) if text.strip() else []
    containers = tuple(container_of_row(row) for row in rows)
    for row, made in zip(rows, containers, strict=True):
        if str(row.get("Status") or "").strip() and made.status is None:
            raise UnusableOutput(f"no status of a container: {str(row['Status'])[:80]}")
    whole = not call.filtered and not any(o.startswith(("-n", "-l")) for o in call.options)
    yield Containers(
        containers=containers,
        running_listed=True if whole else None,
        all_listed=True if whole and every else None,
    )


_STATUS = re.compile(
    r"\s(Up (?:\d|About|Less)[^\"]*?|(?:Exited|Restarting) \(\d+\)[^\"]*? ago|Created|Dead)"
    r"(?:\s{2,}|$)"
)


def _table(text: str) -> list[dict[str, Any]]:
    """Rows of ``docker ps`` as people paste them: with columns that need not be in line."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].lstrip().startswith("CONTAINER ID"):
        lines = lines[1:]
    rows = []
    for line in lines:
        words, status = line.split(), _STATUS.search(line)
        if len(words) < 3 or not re.fullmatch(r"[0-9a-f]{6,64}", words[0]):
            raise UnusableOutput(f"no row of `docker ps`: {line[:80]}")
        state = status[1] if status else None
        rows.append({"ID": words[0], "Image": words[1], "Names": words[-1], "Status": state})
    return rows


def _inspected(call: Call, reading: Reading) -> Iterator[Fact]:
    _refuse_error(reading.text)
    if not reading.text.strip():
        if reading.rc != 0:
            raise UnusableOutput("docker inspect printed nothing")
        # Nothing was named: there is no container.
        yield Containers()
        return
    found = documents(call, reading.text)
    yield from _environment(found)
    given = [name for name in call.names if "$" not in name]
    named = given[0] if len(given) == len(found) == 1 else None
    if all({"RootFS", "RepoDigests", "Os", "Architecture"} & set(one) for one in found):
        yield Images(images=tuple(image_of(one, named) for one in found))
        return
    yield Containers(containers=tuple(container_of(one, named) for one in found))


def _images(call: Call, reading: Reading) -> Iterator[Fact]:
    given = call.names[0] if len(call.names) == 1 else None
    if missing := re.search(r"(?i)no such (?:image|object): ?(\S+)", reading.text):
        yield Images(absent=(missing[1],))
        return
    _refuse_error(reading.text)
    if call.verb == "images" and call.template is None:
        yield Images(images=tuple(image_of_row(row) for row in table_rows(reading.text)))
        return
    found = documents(call, reading.text) if reading.text.strip() else []
    if not found and reading.rc != 0 and call.verb != "images":
        raise UnusableOutput("no image in the answer")
    yield from _environment(found, image=True)
    one = given if len(found) == 1 else None
    yield Images(images=tuple(image_of(document, one) for document in found))


def _daemon_file(reading: Reading) -> Iterator[DockerInfo]:
    told = json.loads(reading.text or "{}")
    if not isinstance(told, dict):
        raise UnusableOutput("expected a JSON object")
    runtimes = told.get("runtimes")
    names = tuple(runtimes) if isinstance(runtimes, dict) else ()
    yield DockerInfo(
        runtimes=("runc", *names),
        default_runtime=word(told.get("default-runtime")),
        root_dir=word(told.get("data-root")),
    )


_ENGINE_VARIABLE = re.compile(
    r"(?:NCCL|GLOO|TP|UCX|OMPI|SGLANG|VLLM|HF|TRITON|TILELANG|B12X|DSV41|DSPARK|SPARKSERVE)_"
)


def _environment(found: list[dict[str, Any]], *, image: bool = False) -> Iterator[Environment]:
    """Variables of the one object that was asked for; those of several do not belong together.

    Only of what runs an engine: a live node may have one container, and that another service's.
    """
    config = found[0].get("Config") if len(found) == 1 else None
    rows = config.get("Env") if isinstance(config, dict) else None
    rows = [str(row) for row in rows] if isinstance(rows, list) else []
    if any(_ENGINE_VARIABLE.match(row) for row in rows):
        yield environment_of(rows, "image" if image else "container")


def _informed(call: Call, reading: Reading) -> Iterator[Fact]:
    if call.template is None:
        yield _info_of_text(reading.text)
        return
    text = re.sub(r"(?m)^WARNING: .*\n?", "", reading.text)
    document = next(iter(documents(call, text)), None)
    if document is None or document.get("ServerErrors"):
        raise UnusableOutput(f"docker info: {text.strip()[:200] or 'no output'}")
    runtimes = document.get("Runtimes")
    devices = document.get("DiscoveredDevices")
    yield DockerInfo(
        runtimes=_runtime_names(runtimes),
        default_runtime=word(document.get("DefaultRuntime")),
        storage_driver=word(document.get("Driver")),
        root_dir=word(document.get("DockerRootDir")),
        server_version=word(document.get("ServerVersion")),
        has_cdi_gpu=True if devices and "nvidia.com/gpu" in str(devices) else None,
    )


def _runtime_names(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, dict):
        return tuple(sorted(value))
    if isinstance(value, str) and value.startswith("map["):
        return tuple(re.findall(r"(?:\[|\s)([\w.-]+):", value))
    return None


def _info_of_text(text: str) -> DockerInfo:
    told = dict(re.findall(r"^\s*([A-Z][\w ]+): (.+?)\s*$", text, re.MULTILINE))
    info = DockerInfo(
        runtimes=tuple(told["Runtimes"].split()) if "Runtimes" in told else None,
        default_runtime=told.get("Default Runtime"),
        storage_driver=told.get("Storage Driver"),
        root_dir=told.get("Docker Root Dir"),
        server_version=told.get("Server Version"),
        has_cdi_gpu=True if "nvidia.com/gpu" in text else None,
    )
    if info == DockerInfo():
        raise UnusableOutput("no line of `docker info`")
    return info


def _rdma(reading: Reading) -> Iterator[RdmaDevices]:
    if re.search(r"(?m)^(?:\S*/)?ls: ", reading.text):
        yield RdmaDevices()
        return
    names = tuple(
        dict.fromkeys(re.findall(r"(?<![\w-])(uverbs\d+|rdma_cm|umad\d+|issm\d+)\b", reading.text))
    )
    if reading.text.strip() and not names:
        raise UnusableOutput(f"no device of RDMA: {reading.text.strip()[:80]}")
    yield RdmaDevices(names=names)


def _memlock(reading: Reading) -> Iterator[Fact]:
    if (refused := docker_problem(reading)) is not None:
        yield refused
        return
    command = reading.command or reading.path or ""
    inside = bool(re.search(r"\bdocker\b", command)) or "container" in (
        f"{reading.note} {reading.label} {reading.what}".lower()
    )
    inside = inside or bool(re.match(r"(?i)rank", reading.node or ""))
    yield memlock_of(reading.text, in_container=inside)


def memlock_of(text: str, *, in_container: bool) -> Memlock:
    """The limit from ``ulimit -l``, ``ulimit -a``, ``prlimit`` or a limits file of /proc.

    Raises:
        UnusableOutput: the text holds no such limit.
    """
    text = text.strip()
    row = re.search(r"(?im)^[ \t]*max locked memory\s+(?:\([^)]*\)\s*)?(\S+)", text) or re.search(
        r"(?im)^[ \t]*memlock\s.*?\s(\d+|unlimited)\b", text
    )
    word = row[1] if row else text
    if word in ("unlimited", "-1", "infinity"):
        return Memlock(is_unlimited=True, in_container=in_container)
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise UnusableOutput(f"no limit of locked memory: {text[:80]}")
    in_bytes = row is not None and "kbytes" not in row[0]
    kib = int(word) // 1024 if in_bytes else int(word)
    return Memlock(is_unlimited=False, limit_kib=kib, in_container=in_container)


def _refuse_error(text: str) -> None:
    if found := re.search(r"(?m)^(?:Error|error|docker:|template parsing error|unknown).*", text):
        raise UnusableOutput(found[0][:200])


_DOCKER = r"(?:sudo )?(?:\S*/)?docker (?:-\S+ )*"
READERS: tuple[Reader, ...] = (
    Reader(
        "containers.memlock", (Memlock, DockerDaemon), _memlock,
        commands=(
            rf"{_DOCKER}(?:container )?(?:exec|run) .*(?:ulimit\b.*-\w*[la]|/limits|prlimit).*",
            r"(?:sh -c|bash -l?c)?\W*ulimit (?:-[HS] ?)?-\w*[la]\W*",
            r"prlimit .*--memlock.*",
            r"(?:cat|grep .*|egrep .*) ?/proc/\S+/limits.*",
        ),
        paths=(r"/proc/[^/]+/limits",),
        whats=(r"memlock.*|.*\bulimit -l\b.*",),
    ),
    Reader(
        # In place of what a container would have printed.
        "containers.refused", (DockerDaemon,), _refusal,
        commands=(rf"(?:{_DOCKER}|docker-compose )(?:compose|run|start|up|exec|logs|pull|ps)\b.*",),
        holds=r"permission denied while trying to connect to the [Dd]ocker"
        r"|[Cc]annot connect to the Docker daemon",
    ),
    Reader(
        "containers.rdma", (RdmaDevices,), _rdma,
        commands=(r"(?:docker exec \S+ )?ls .*/dev/infiniband\b.*",),
    ),
    Reader(
        "containers.list", (Containers, DockerDaemon), _docker(_listed),
        commands=(rf"{_DOCKER}(?:container )?(?:ps|ls|list)\b.*",),
    ),
    Reader(
        "containers.info", (DockerInfo, DockerDaemon), _docker(_informed),
        commands=(rf"{_DOCKER}(?:system )?info\b.*",),
    ),
    Reader(
        "containers.daemon", (DockerInfo,), _daemon_file,
        commands=(r"(?:sudo )?cat \S*docker/daemon\.json.*",), paths=(r"\S*docker/daemon\.json",),
    ),
    *docker_run.READERS,
    Reader(
        "containers.images", (Images, DockerDaemon), _docker(_images),
        commands=(
            rf"(?!.*\.Config\.Env\b){_DOCKER}(?:image (?:inspect|ls|list)|images)\b.*",
            rf"{_DOCKER}inspect .*--type[= ]image\b.*",
        ),
    ),
    Reader(
        "containers.inspect", (Containers, DockerDaemon), _docker(_inspected),
        commands=(rf"(?!.*\.Config\.Env\b){_DOCKER}(?:container )?inspect\b.*",),
    ),
)  # fmt: skip
_LIST_LIMIT = 40
"""Containers and images that are looked at closely: more are no Spark's. [proposal]"""


_KEEP = """\
import json, re, sys
engine = re.compile(r"(?:NCCL|GLOO|TP|UCX|OMPI|SGLANG|VLLM|HF|TRITON|TILELANG|B12X|DSV41|DSPARK)_")
secret = re.compile(r"(?i)key|token|secret|pass|auth|cred")
for one in (found := json.load(sys.stdin)):
    config, args = one.get("Config") or {}, one.get("Args") or []
    config["Env"] = [row for row in config.get("Env") or []
                     if engine.match(row) and not secret.search(row.partition("=")[0])]
    config.pop("Cmd", None)
    one["Args"] = [word for pair in zip(args, args[1:]) for word in pair
                   if pair[0] in ("--model-path", "--model")]
print(json.dumps(found))
"""
"""Runs on the node: other services' variables and every secret stay there."""


def _each(listing: str, inspect: str) -> Ask:
    command = f"{inspect} $({listing})"
    script = (
        f"c=$({listing}) || exit $?\nc=$(echo $c | cut -d' ' -f1-{_LIST_LIMIT})\n"
        f'[ -n "$c" ] || exit 0\n{inspect} $c | python3 -c {shlex.quote(_KEEP)}'
    )
    ask_id = f"containers.{inspect.split()[-2]}"
    return Ask(ask_id, lambda _: script, command=command, format="json")


ASKS: tuple[Ask, ...] = (
    Ask(
        # Warnings stand before the document, and the refusal of the daemon in its place.
        "containers.info",
        lambda _: "d=$(docker info --format '{{json .}}' 2>&1); s=$?\n"
        "printf '%s\\n' \"$d\" | grep -v '^WARNING:'; exit $s",
        command="docker info --format '{{json .}}'", format="json",
    ),
    ask_command("containers.ps", "docker ps -a --format '{{json .}}'", format="json"),
    _each("docker ps -aq", "docker inspect"),
    _each("docker images -q", "docker image inspect"),
    Ask("containers.rdma", lambda _: "ls /dev/infiniband 2>/dev/null || :",
        command="ls /dev/infiniband"),
)  # fmt: skip
__all__ = [
    "ASKS", "READERS", "Container", "Containers", "DockerDaemon", "DockerInfo", "Image", "Images",
    "Memlock", "Mount", "RdmaDevices", "docker_problem", "memlock_of",
]  # fmt: skip
