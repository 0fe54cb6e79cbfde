"""What is known of the container runtime, of images and of containers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparkserve.facts.reader import Fact
from sparkserve.model.base import Model

# What docker itself accepts as a name; any other text in its place is not docker's answer.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,/-]*$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]

Status = Annotated[
    str,
    Field(pattern=r"(?i)^(created|running|paused|restarting|removing|exited|dead|stopped)$"),
]


class Mount(Model):
    """One folder of the host, or one volume, as a container sees it."""

    destination: str
    source: str | None = None
    kind: str | None = None
    """``bind``, ``volume``, ``tmpfs``."""
    writable: bool | None = None


class Container(Model):
    """What is known about one container; every field may be unknown."""

    name: Name | None = None
    """Without the leading slash."""
    id: Annotated[str, Field(pattern=r"^[0-9A-Za-z:]+$")] | None = None
    """As printed; may be shortened."""
    image: str | None = None
    """Reference by which it was started."""
    image_id: str | None = None
    status: Status | None = None
    """``created``, ``running``, ``paused``, ``restarting``, ``exited``, ``dead``."""
    exit_code: int | None = None
    oom_killed: bool | None = None
    """Docker's own flag: set only where the container's cgroup limit was hit."""
    pid: int | None = None
    restart_count: int | None = None
    restart_policy: str | None = None
    """``no``, ``on-failure``, ``unless-stopped``, ``always``."""
    restart_limit: int | None = None
    """Most restarts of ``on-failure``; 0 = no limit."""
    mounts: tuple[Mount, ...] | None = None
    labels: dict[str, str] | None = None
    args: tuple[str, ...] | None = None
    environment: tuple[str, ...] | None = None
    """``NAME=value`` lines."""
    devices: tuple[str, ...] | None = None
    """Devices of the host that it is given; everything where it is privileged."""
    shm_bytes: int | None = None
    """Size of its ``/dev/shm``."""
    memlock_bytes: int | None = None
    """Limit that docker sets for it; -1 = unlimited, None = the daemon's own or not known."""

    def is_same(self, other: Container) -> bool:
        """Whether both tell of one container: by id (also shortened), else by name."""
        if self.id and other.id:
            return self.id.startswith(other.id) or other.id.startswith(self.id)
        return self.name is not None and self.name == other.name


class Containers(Fact):
    """Containers of one place."""

    containers: tuple[Container, ...] = ()
    running_listed: bool | None = None
    """True: every running container is among them, so that a missing one does not run."""
    all_listed: bool | None = None
    """True: stopped ones, too."""

    def merged(self, other: Containers) -> Containers:
        """Both together; two readings of one container become one."""
        joined = list(self.containers)
        for one in other.containers:
            for number, mine in enumerate(joined):
                if mine.is_same(one):
                    known = one.model_dump(exclude_none=True) | mine.model_dump(exclude_none=True)
                    joined[number] = Container.model_validate(known)
                    break
            else:
                joined.append(one)
        return Containers(
            containers=tuple(joined),
            running_listed=self.running_listed or other.running_listed,
            all_listed=self.all_listed or other.all_listed,
        )


class DockerDaemon(Fact):
    """Whether docker answered this user."""

    problem: Literal["permission", "not-running", "absent"] | None = None
    """None = it answered."""
    message: str = ""

    def merged(self, other: DockerDaemon) -> DockerDaemon:
        """A refusal outweighs an answer: the answer may have come from another user."""
        return self if self.problem else other


class DockerInfo(Fact):
    """What ``docker info`` tells."""

    runtimes: tuple[str, ...] | None = None
    default_runtime: Word | None = None
    storage_driver: Word | None = None
    root_dir: str | None = None
    server_version: str | None = None
    has_cdi_gpu: bool | None = None
    """True: an NVIDIA GPU is offered by CDI, which needs no runtime of that name."""


class Image(Model):
    """One image on one place."""

    reference: str | None = None
    id: str | None = None
    digests: tuple[str, ...] = ()
    os: Word | None = None
    architecture: Word | None = None
    labels: dict[str, str] | None = None
    environment: tuple[str, ...] | None = None


class Images(Fact):
    """Images of one place."""

    images: tuple[Image, ...] = ()
    absent: tuple[str, ...] = ()
    """References that docker does not know there."""


class RdmaDevices(Fact):
    """Files below /dev/infiniband."""

    names: tuple[str, ...] = ()


class Memlock(Fact):
    """How much memory a process may pin."""

    is_unlimited: bool
    limit_kib: int | None = None
    """None where unlimited."""
    in_container: bool
    """False: of a shell of the host, which says nothing about a container."""
