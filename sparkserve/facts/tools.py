"""Programs on the PATH of a non-interactive shell and of a login shell; what they can do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sparkserve.facts.gpu_kinds import GpuDriver
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, ask_command
from sparkserve.model.reading import Reading

_WANTED = "docker nvidia-smi nvidia-ctk ip curl rsync python3 hf nvcc"


class Programs(Fact):
    """What the shell finds that a launcher gets over SSH."""

    paths: dict[str, str | None]
    """Name -> absolute path; None = not found."""


class LoginPrograms(Fact):
    """The same in a login shell, as a person gets it at a terminal."""

    paths: dict[str, str | None]


class Toolchain(Fact):
    """Releases of CUDA's compilers."""

    ptxas: str | None = None
    """Such as ``12.8``."""
    nvcc: str | None = None


class EngineFlags(Fact):
    """Flags that an engine's ``--help`` lists."""

    flags: tuple[str, ...]


class Packages(Fact):
    """Python packages of a runtime or an image."""

    versions: dict[str, str]
    """Normalised name -> version."""


class FileDigests(Fact):
    """Digests of files that must be equal on all ranks."""

    sha256: dict[str, str]
    """Path -> hex digits."""
    absent: tuple[str, ...] = ()
    """Paths that were asked for and are not there."""


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _programs(reading: Reading) -> Iterator[Programs | LoginPrograms]:
    command = reading.command or ""
    names = wanted_names(command)
    found: dict[str, str | None] = {}
    for line in reading.text.splitlines():
        words = line.replace(":", " ").split()
        if not words:
            continue
        path = next((w for w in words if w.startswith("/") and not w.endswith("/")), None)
        denied = re.search(r"not found|^no \S+ in|\s(?:-|missing|MISSING|none)\s*$", line)
        if denied:
            named = re.match(r"(?:\S*/)?(?:which: )?no (\S+) in", line)
            name = named[1] if named else next((w for w in words if w in names), words[0])
            found[name] = None
        elif path is not None and (not names or path.rpartition("/")[2] in names):
            found[path.rpartition("/")[2]] = path
    if not found and reading.text.strip():
        raise UnusableOutput(f"no path of a program: {reading.text.strip()[:80]}")
    # `command -v` and `which` print nothing about a name that they do not find.
    paths = dict.fromkeys(names) | found
    login = re.search(r"\b(?:bash|zsh|sh)\s+(?:-\w*[li]\w*\b|--login)", command)
    yield LoginPrograms(paths=paths) if login else Programs(paths=paths)


_NOT_FOUND = r"(?m)^\S{0,60}sh: (?:line )?(?:\d+: )?(?P<name>[\w.+-]+): (?:command )?not found\s*$"


def _absent(reading: Reading) -> Iterator[Programs]:
    """What a shell says of a program that it does not find, whatever was to be run."""
    names = [row["name"] for row in re.finditer(_NOT_FOUND, reading.text)]
    yield Programs(paths=dict.fromkeys(names))


def wanted_names(command: str) -> tuple[str, ...]:
    """Programs that a command line asks for."""
    loop = re.search(r"\bfor \w+ in ([^;]+);", command)
    plain = re.search(r"(?:command -v|which(?: -a)?|type -[pP]|whereis -b)\s+([^;|&'\"]+)", command)
    chosen = loop or plain
    words = chosen[1].split() if chosen else []
    return tuple(word for word in words if re.fullmatch(r"[\w.+-]+", word))


def _toolchain(reading: Reading) -> Iterator[Toolchain]:
    release = re.search(r"(?i)\brelease (\d+\.\d+)", reading.text)
    if release is None:
        raise UnusableOutput(f"no release of a compiler: {reading.text.strip()[:80]}")
    told = f"{reading.command} {reading.text}".lower()
    if "ptxas" in told:
        yield Toolchain(ptxas=release[1])
    else:
        yield Toolchain(nvcc=release[1])


def _smi_version(reading: Reading) -> Iterator[GpuDriver]:
    cuda = re.search(r"CUDA Version\s*: (\d+\.\d+)", reading.text)
    if cuda is None:
        raise UnusableOutput("no CUDA version")
    yield GpuDriver(cuda=cuda[1])


def _flags(reading: Reading) -> Iterator[EngineFlags]:
    flags = tuple(dict.fromkeys(re.findall(r"(?<![\w-])--[a-zA-Z][a-zA-Z0-9-]*", reading.text)))
    if not flags or not re.search(r"(?i)usage:|options:|arguments:", reading.text):
        raise UnusableOutput("no help text with flags")
    yield EngineFlags(flags=flags)


def _packages(reading: Reading) -> Iterator[Packages]:
    text = reading.text
    versions: dict[str, str] = {}
    if text.lstrip().startswith("["):
        for row in json.loads(text):
            if not isinstance(row, dict):
                raise UnusableOutput("a row of pip's list is no object")
            if isinstance(row.get("name"), str) and isinstance(row.get("version"), str):
                versions[normalised(row["name"])] = row["version"]
    elif re.search(r"(?m)^Name: ", text):
        names = re.findall(r"(?m)^Name: (\S+)\s*\nVersion: (\S+)", text)
        versions = {normalised(name): version for name, version in names}
    else:
        rows = re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)(?:==|[ \t]+)(\d\S*)(?:[ \t].*)?$", text)
        versions = {normalised(name): version for name, version in rows}
    if not versions:
        raise UnusableOutput("no list of packages")
    yield Packages(versions=versions)


def _digests(reading: Reading) -> Iterator[FileDigests]:
    rows = re.findall(r"(?m)^([0-9a-f]{32,128}) [ *](\S.*?)\s*$", reading.text)
    absent = re.findall(r"(?m)^\S*sum: (\S+?): No such file", reading.text)
    asked = " " in reading.source and reading.rc == 0 and not reading.text.strip()
    if not rows and not absent and not asked:
        raise UnusableOutput("no line of a digest")
    yield FileDigests(sha256={path: digest for digest, path in rows}, absent=tuple(absent))


READERS: tuple[Reader, ...] = (
    Reader(
        "tools.programs", (Programs,), _programs,
        commands=(
            r"for \w+ in [^;]+; do (?:command -v|which|type).*",
            r"(?:command -v|which|type -[pP]|whereis) .*",
        ),
    ),
    Reader(
        "tools.login_programs", (LoginPrograms,), _programs,
        commands=(r"(?:bash|zsh|sh) (?:-\w*[lic]\w* )+.*(?:command -v|which|type -[pP]).*",),
    ),
    Reader(
        "tools.compilers", (Toolchain,), _toolchain,
        commands=(
            r".*(?:ptxas|nvcc|PTXAS_PATH\S*)['\"]? (?:--version|-V)\b.*",
            r".*--entrypoint[= ]\S*(?:ptxas|nvcc)['\"]? .*(?:--version|-V)\b.*",
        ),
        whats=(r"(?:ptxas|nvcc)(?: version| --version)?.*",),
    ),
    Reader(
        "tools.smi_version", (GpuDriver,), _smi_version, commands=(r"nvidia-smi --version\b.*",),
    ),
    Reader(
        "tools.digests", (FileDigests,), _digests,
        commands=(r"(?:md5|sha1|sha256|sha512)sum (?!\S*\.(?:toml|ya?ml)$).*",),
    ),
    Reader(
        "tools.engine_help", (EngineFlags,), _flags,
        commands=(r".*(?:launch_server|api_server|sglang|vllm|serve)\b.* (?:--help|-h)\b.*",),
        whats=(r"(?:engine |launch_server )?(?:--)?help(?: text| output)?(?: of .*)?",),
    ),
    Reader(
        "tools.packages", (Packages,), _packages,
        commands=(r".*\bpip3?\d?(?:\.\d+)?(?: -\S+)* (?:list|freeze|show)\b.*",),
        whats=(r"pip (?:list|freeze)",),
    ),
)  # fmt: skip
LAST: tuple[Reader, ...] = (
    Reader("tools.absent", (Programs,), _absent, commands=(r".*",), holds=_NOT_FOUND),
)
"""Of commands that no other reader takes."""
_LOOP = f"for t in {_WANTED}; do command -v $t || echo $t -; done"
ASKS: tuple[Ask, ...] = (
    ask_command("tools.programs", _LOOP),
    ask_command("tools.login_programs", f"bash -lc '{_LOOP}'"),
    Ask(
        "tools.tables",
        lambda _: 'sha256sum "$ROOT"/state/dspark_s[pt]s.json 2>/dev/null || :',
        command="sha256sum state/dspark_sps.json state/dspark_sts.json",
    ),
)
