"""Containers and images as facts, from documents in the form of ``docker inspect``."""

from __future__ import annotations

import re
from typing import Any

from sparkserve.facts.container_kinds import Container, Image, Mount
from sparkserve.facts.probe import UnusableOutput


def container_of_row(row: dict[str, Any]) -> Container:
    """A container from a row of ``docker ps``."""
    told = word(row.get("Status")) or ""
    state = (word(row.get("State")) or _state_of(told) or "").lower() or None
    code = re.match(r"(?:Exited|Restarting) \((\d+)\)", told)
    labels = word(row.get("Labels"))
    return Container(
        name=_name(row.get("Names") or row.get("Name")),
        id=word(row.get("ID")),
        image=word(row.get("Image")),
        status=state,
        exit_code=int(code[1]) if code and len(code[1]) < 6 else None,
        labels=dict(re.findall(r"([\w./-]+)=([^,]*)", labels)) if labels else None,
    )


def _state_of(status: str) -> str | None:
    if "(Paused)" in status:
        return "paused"
    words = {"Up": "running", "Exited": "exited", "Created": "created", "Dead": "dead",
             "Restarting": "restarting", "Removal": "removing"}  # fmt: skip
    return words.get(status.split(" ")[0])


def container_of(document: dict[str, Any], named: str | None = None) -> Container:
    """A container from a whole or partial inspect document.

    named: the one name on the command line, for a document that does not hold it.
    """
    state, host = _part(document, "State"), _part(document, "HostConfig")
    config, policy = _part(document, "Config"), _part(host, "RestartPolicy")
    image = word(document.get("Image"))
    mounts, binds = document.get("Mounts"), host.get("Binds")
    if not isinstance(mounts, list) and isinstance(binds, list):
        mounts = [row for bind in binds if (row := _mount_of_bind(str(bind))) is not None]
    return Container(
        name=_name(document.get("Name")) or named,
        id=word(document.get("Id") or document.get("ID")),
        image=word(config.get("Image")),
        image_id=image if image and image.startswith("sha256:") else None,
        status=_status(state.get("Status")),
        exit_code=_number(state.get("ExitCode")),
        oom_killed=_flag(state.get("OOMKilled")),
        pid=_number(state.get("Pid")),
        restart_count=_number(document.get("RestartCount")),
        restart_policy=word(policy.get("Name")),
        restart_limit=_number(policy.get("MaximumRetryCount")),
        mounts=mounts_of(mounts) if isinstance(mounts, list) else None,
        labels=_labels(config.get("Labels")),
        args=_words(document.get("Args")),
        environment=_words(config.get("Env")),
        devices=_devices(host),
        shm_bytes=_number(host.get("ShmSize")),
        memlock_bytes=_memlock_limit(host.get("Ulimits")),
    )


_STATES = ("created", "running", "paused", "restarting", "removing", "exited", "dead")


def _status(value: Any) -> str | None:
    state = word(value)
    if state is not None and state.lower() not in _STATES:
        raise UnusableOutput(f"no state of a container: {state[:40]}")
    return state.lower() if state else None


def _devices(host: dict[str, Any]) -> tuple[str, ...] | None:
    if _flag(host.get("Privileged")):
        return ("/dev",)
    rows = host.get("Devices")
    if "Devices" not in host or not isinstance(rows, list | None):
        return None
    paths = [row.get("PathOnHost") for row in rows or () if isinstance(row, dict)]
    return tuple(path for path in paths if isinstance(path, str))


def _mount_of_bind(bind: str) -> dict[str, Any] | None:
    """A row of ``Mounts`` from ``SOURCE:DESTINATION[:OPTIONS]``."""
    source, _, rest = bind.partition(":")
    destination, _, options = rest.partition(":")
    if not destination.startswith("/"):
        return None
    kind = "bind" if source.startswith("/") else "volume"
    read_only = "ro" in options.split(",")
    return {"Source": source, "Destination": destination, "Type": kind, "RW": not read_only}


def _memlock_limit(rows: Any) -> int | None:
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("Name") == "memlock":
            return _number(row.get("Soft"))
    return None


def mounts_of(rows: list[Any]) -> tuple[Mount, ...]:
    """Mounts from docker's own list of them."""
    found = []
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("Destination"), str):
            raise UnusableOutput("a mount without a destination")
        found.append(
            Mount(
                destination=row["Destination"],
                source=word(row.get("Source")) or word(row.get("Name")),
                kind=word(row.get("Type")),
                writable=_flag(row.get("RW")),
            )
        )
    return tuple(found)


def image_of(document: dict[str, Any], named: str | None) -> Image:
    """An image from a whole or partial inspect document."""
    config = _part(document, "Config")
    if "Repository" in document:
        # A row of `docker images`.
        name, digest = str(document["Repository"]), str(document.get("Digest"))
        return Image(
            reference=f"{name}:{document.get('Tag')}",
            id=word(document.get("ID")),
            digests=(f"{name}@{digest}",) if digest.startswith("sha256:") else (),
        )
    tags = document.get("RepoTags")
    tag = tags[0] if isinstance(tags, list) and tags and isinstance(tags[0], str) else None
    return Image(
        reference=named or tag,
        id=word(document.get("Id") or document.get("ID")),
        digests=_words(document.get("RepoDigests")) or (),
        os=word(document.get("Os")),
        architecture=word(document.get("Architecture")),
        labels=_labels(config.get("Labels")),
        environment=_words(config.get("Env")),
    )


def image_of_row(row: dict[str, str]) -> Image:
    """An image from a row of docker's own table."""
    digest = row.get("DIGEST", "")
    name, tag = row.get("REPOSITORY", ""), row.get("TAG", "")
    return Image(
        reference=row.get("IMAGE") or f"{name}:{tag}",
        id=row.get("IMAGE ID") or row.get("ID"),
        digests=(f"{name}@{digest}",) if digest.startswith("sha256:") else (),
    )


def word(value: Any) -> str | None:
    """A text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def _name(value: Any) -> str | None:
    name = word(value)
    return name.removeprefix("/") if name else None


def _number(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _part(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _words(value: Any) -> tuple[str, ...] | None:
    return tuple(str(one) for one in value) if isinstance(value, list) else None


def _labels(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    return {str(key): str(one) for key, one in value.items()}
