"""What NFS servers offer, the volumes that use it, and files that others may not read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkserve.facts.containers import docker_problem
from sparkserve.facts.docker_output import documents, parse_call
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader, bare_command
from sparkserve.facts.ssh import Connection, accepted_methods, last_line, login_status
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading


class Export(Model):
    """One folder that an NFS server offers to one group of clients."""

    path: str
    clients: str
    options: tuple[str, ...] = ()


class Exports(Fact):
    """What an NFS server offers."""

    exports: tuple[Export, ...] = ()


class NfsService(Fact):
    """Whether an NFS server answers at its own machine."""

    answers: bool
    message: str = ""


class Volume(Fact):
    """A docker volume's options."""

    name: str | None = None
    kind: str | None = None
    device: str | None = None
    options: tuple[str, ...] = ()

    @property
    def server(self) -> str | None:
        """Address of the NFS server."""
        return next((o.partition("=")[2] for o in self.options if o.startswith("addr=")), None)


class Mode(Model):
    """Permissions of one file or folder."""

    path: str
    mode: int
    """Such as 0o755."""
    is_folder: bool | None = None


class Modes(Fact):
    """Permissions as ``find -printf`` or ``stat`` lists them."""

    modes: tuple[Mode, ...] = ()


class CopyFailure(Fact):
    """What rsync or scp complained about."""

    tool: str
    path: str | None = None
    """Folder that could not be made."""
    message: str = ""


def _volume(reading: Reading) -> Iterator[Fact]:
    call = parse_call(bare_command(reading.command or ""))
    if (refused := docker_problem(reading)) is not None:
        yield refused
        return
    for document in documents(call, reading.text):
        options = document.get("Options", document)
        if not isinstance(options, dict):
            raise UnusableOutput("a volume without options")
        told = {key: value for key, value in options.items() if isinstance(value, str)}
        named = call.names[0] if len(call.names) == 1 else None
        name = document.get("Name")
        yield Volume(
            name=name if isinstance(name, str) else named,
            kind=told.get("type"),
            device=told.get("device"),
            options=tuple(told.get("o", "").split(",")) if told.get("o") else (),
        )


def _exports(reading: Reading) -> Iterator[Exports]:
    """``/etc/exports``, ``exportfs -v`` and ``showmount -e``."""
    text = re.sub(r"\\\\\n|\n[ \t]+(?=\S{1,300}\()", " ", re.sub(r"(?m)#.*$", "", reading.text))
    found = []
    for line in text.splitlines():
        row = re.match(r'\s*(?:"(/[^"]*)"|(/\S*))\s+(\S.*)$', line)
        if row is None:
            continue
        for clients, options in re.findall(r"([^\s()]+)(?:\(([^)]*)\))?", row[3]):
            found.append(
                Export(
                    path=row[1] or row[2], clients=clients,
                    options=tuple(o for o in options.split(",") if o),
                )
            )  # fmt: skip
    empty = not text.strip() or re.fullmatch(r"(?i)\s*export list for \S+:?\s*", text)
    if not found and not empty:
        raise UnusableOutput(f"no exported folder: {reading.text.strip()[:80]}")
    yield Exports(exports=tuple(found))


def _service(reading: Reading) -> Iterator[NfsService]:
    text = reading.text.strip()
    if re.search(r"ready and waiting", text):
        yield NfsService(answers=True)
    elif re.search(r"(?i)not registered|not available|timed out|refused|unable to receive", text):
        yield NfsService(answers=False, message=last_line(text))
    else:
        raise UnusableOutput(f"no answer of rpcinfo: {text[:80]}")


def _modes(reading: Reading) -> Iterator[Modes]:
    found = []
    for line in reading.text.splitlines():
        if row := re.match(r"\s*(?:([dlfcbps-]) )?0?([0-7]{3,4}) (\S.*)$", line):
            folder = {"d": True, "f": False, "-": False}.get(row[1] or "")
            found.append(Mode(path=row[3].strip(), mode=int(row[2], 8), is_folder=folder))
        elif row := re.match(r"\s*(\S.*?) 0?([0-7]{3,4})\s*$", line):
            found.append(Mode(path=row[1], mode=int(row[2], 8)))
    if not found:
        raise UnusableOutput(f"no permissions: {reading.text.strip()[:80] or 'no output'}")
    yield Modes(modes=tuple(found))


def _unreadable(reading: Reading) -> Iterator[Modes]:
    # `find DIR ! -perm -o=r` prints only what others may not read.
    paths = [line.strip() for line in reading.text.splitlines() if line.strip()]
    if any(path.startswith("find:") for path in paths):
        raise UnusableOutput(paths[0][:200])
    yield Modes(modes=tuple(Mode(path=path, mode=0o600) for path in paths))


def _copy(reading: Reading) -> Iterator[Fact]:
    if (status := login_status(reading.text)) is not None:
        told = re.search(
            r"(?:([\w.-]+)@)?([\w.-]+):(?:\s|[/~])", reading.text + " " + (reading.command or "")
        )
        user, host = (told[1], told[2]) if told else (None, None)
        yield Connection(
            status=status, user=user, host=host, methods=accepted_methods(reading.text),
            message=last_line(reading.text),
        )  # fmt: skip
        return
    text = re.sub("[\u2018\u2019']", '"', reading.text)
    made = re.search(
        r"(?:mkdir|change_dir|mkstemp|cannot create directory|open)\W+(/[^\"]+?)\"?"
        r" ?(?:\(in \S+\) )?(?:failed|: No such file)",
        text,
    )
    target = re.search(r"scp: (?:dest open \"?|open local \"?)?(/[^\":]+)", text)
    error = re.search(r"(?m)^.*(?:error|failed|No such file).*$", text)
    if error is None:
        raise UnusableOutput(f"no complaint of a copy: {text.strip()[:80]}")
    path = made or target
    yield CopyFailure(
        tool="scp" if "scp" in text else "rsync",
        path=path[1] if path else None,
        message=error[0].strip()[:300],
    )


_DOCKER = r"(?:sudo )?docker (?:-\S+ )*"
READERS: tuple[Reader, ...] = (
    Reader("exports.volume", (Volume,), _volume, commands=(rf"{_DOCKER}volume inspect\b.*",)),
    Reader(
        "exports.exports", (Exports,), _exports,
        commands=(
            r".*\bexportfs(?: -\S+)*", r"showmount .*-e.*", r"(?:cat|grep .*) \S*/etc/exports\S*",
            r"cat /var/lib/nfs/etab",
        ),
        paths=(r"\S*/etc/exports(?:\.d/\S+)?", r"/var/lib/nfs/etab"), whats=(r"exports",),
    ),
    Reader(
        "exports.service", (NfsService,), _service,
        commands=(r"rpcinfo .*-[tu] \S+ (?:nfs|100003)\b.*",),
    ),
    Reader(
        "exports.unreadable", (Modes,), _unreadable,
        commands=(r"find (?=.*! -perm -(?:o=r|0*4)\b)(?!.*-printf).*",),
    ),
    Reader(
        "exports.modes", (Modes,), _modes,
        commands=(
            r"find .*-printf ['\"]?[^'\"]*%m.*",
            r"stat (?=.*(?:-c|--format|--printf))(?=.*%a).*",
        ),
    ),
    Reader(
        "exports.copy", (CopyFailure, Connection), _copy, commands=(r"(?:rsync|scp) .*",),
        whats=(r"(?:rsync|scp)(?: output| log| stderr)?",),
    ),
)  # fmt: skip
ASKS: tuple[Ask, ...] = (
    Ask(
        "exports.exports", lambda _: "cat /etc/exports /etc/exports.d/*.exports 2>/dev/null || :",
        path="/etc/exports",
    ),
)  # fmt: skip
