"""The commands that go on with the same shards: of the same profile, nodes and files."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkserve.ops.shards import LocalRank, ShardsRequest
    from sparkserve.ops.target import Target

_PACK = "sparkserve pack"


@dataclass(frozen=True)
class ShardCommands:
    """What a user can paste."""

    pack: str
    verify: str
    launch: str | None
    """None = one rank on this machine, which no profile serves."""

    @property
    def after_packing(self) -> tuple[str, ...]:
        """What comes next, in order."""
        return (self.verify,) if self.launch is None else (self.verify, self.launch)

    def named(self, fix: str) -> str:
        """A node's fix with the whole command where it begins with the bare one.

        A node knows its job, but not how its user named it.
        """
        return self.pack + fix.removeprefix(_PACK) if fix.startswith(_PACK) else fix


def shard_commands(request: ShardsRequest, profile: str | None) -> ShardCommands:
    """The commands for a request.

    profile: as the user named it; None = one rank on this machine.
    """
    which = _given("--layers", ",".join(map(str, request.layers or ())))
    layout = _given("--layout", request.layout)
    if request.local is not None:
        words = [*_rank(request.local), *which, *layout, *_given("--model", request.local.model)]
        words += _given("--token-file", request.token_file)
        # Rows can be checked without a checkpoint, and not be packed without one.
        packing = words if request.local.model else [*words, "--model", "DIR"]
        return ShardCommands(
            f"{_PACK} {shlex.join(packing)}",
            f"sparkserve verify --engram {shlex.join(words)}",
            None,
        )
    where = _where(request.target, profile)
    words = [*where, *which, *layout, *_given("--source", request.source)]
    words += _given("--token-file", request.token_file)
    settings = ["--set", f"engram.layout={request.layout}"] if request.layout else []
    return ShardCommands(
        f"{_PACK} {shlex.join(words)}",
        f"sparkserve verify --engram {shlex.join(words)}",
        f"sparkserve launch {shlex.join([*where, *settings])}",
    )


def _rank(local: LocalRank) -> list[str]:
    return ["--out", local.out, "--tp", str(local.tp), "--rank", str(local.rank)]


def named(target: Target, profile: str) -> str:
    """Options of a command that mean the same profile and nodes.

    profile: its name, where the user named none.
    """
    return shlex.join(_where(target, target.profile or profile))


def _where(target: Target, profile: str | None) -> list[str]:
    words = [*_given("--profile", profile), *_given("--cluster", target.cluster)]
    words += _given("--hosts", ",".join(target.hosts))
    words += _given("--hosts-file", str(target.hosts_file) if target.hosts_file else None)
    words += _given("--nodes", str(target.nodes) if target.nodes else None)
    tp = target.values.get("parallel", {}).get("tp")
    words += _given("--tp", str(tp) if tp else None)
    for setting in target.settings:
        words += ["--set", setting]
    return words


def _given(option: str, value: str | None) -> list[str]:
    return [option, value] if value else []
