"""The error tree and the exit codes; every class carries the code its failure ends with.

::

    SparkserveError                 70  a bug, unless a subclass says otherwise
    ├── ConfigError                  2  a profile, cluster file or option is wrong or contradictory
    │   └── BusyError                2  the nodes already serve, or another launch holds them
    ├── NodeError(node)              3  a node could not be used
    │   ├── UnreachableError         3  no answer on the network
    │   ├── AuthenticationError      3  the node refused our key
    │   ├── HostKeyError             3  unknown or changed host key
    │   ├── ConnectionLostError      3  the link went away in the middle of something
    │   └── RemoteError(result)      6  a command ran on the node and failed
    ├── CheckFailed(findings)        1  failing findings; 4 or 5 by what failed
    ├── NotReadyError                6  the engine did not become ready
    │   └── EngineRefused(adapter)   6  an adapter refused to install (78 inside the engine process)
    ├── ShardError(path, offset)     4  an Engram shard cannot be trusted
    └── EndpointError                1  the endpoint answered wrongly or not at all

A message says what, where, and expected against observed; ``hint`` holds the next command.
This module must not import anything of sparkserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What a shell sees when the command ends (design: section 7)."""

    OK = 0
    FINDINGS = 1
    CONFIG = 2
    UNREACHABLE = 3
    UNFIT = 4
    MEMORY = 5
    NOT_READY = 6
    GATE = 7
    INTERNAL = 70
    REFUSED = 78
    """Inside an engine process only: an adapter refused (sysexits EX_CONFIG)."""
    INTERRUPTED = 130


class SparkserveError(Exception):
    """Base of every failure that sparkserve reports in its own words.

    message: what, where, expected against observed.
    hint: the command that mends it or shows more; None where none is known.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(SparkserveError):
    """A profile, cluster file, option or combination of them is wrong."""

    exit_code = ExitCode.CONFIG


class BusyError(ConfigError):
    """The nodes already serve a run, or another launch holds them."""


class NodeError(SparkserveError):
    """One node could not be used; ``node`` is its name in the cluster file."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, node: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{node}: {message}", hint=hint)
        self.node = node


class UnreachableError(NodeError):
    """Nothing answered at the node's address."""


class AuthenticationError(NodeError):
    """The node refused every key that was offered."""


class HostKeyError(NodeError):
    """The node's host key is unknown or differs from the recorded one."""


class ConnectionLostError(NodeError):
    """The connection went away after it had been established."""


class RemoteError(NodeError):
    """A command ran on the node and failed; ``result`` holds its exit status and output."""

    exit_code = ExitCode.NOT_READY

    def __init__(self, node: str, message: str, *, result: Any, hint: str | None = None) -> None:
        super().__init__(node, message, hint=hint)
        self.result = result


class CheckFailed(SparkserveError):
    """Checks found errors; nothing was changed.

    findings: the failing findings, worst first; their checks decide the exit code.
    """

    exit_code = ExitCode.FINDINGS

    def __init__(
        self,
        message: str,
        *,
        findings: Sequence[Any],
        exit_code: ExitCode = ExitCode.FINDINGS,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.findings = tuple(findings)
        self.exit_code = exit_code


class NotReadyError(SparkserveError):
    """The engine did not become ready; every rank of the run has been stopped."""

    exit_code = ExitCode.NOT_READY


class EngineRefused(NotReadyError):
    """An adapter refused to install, so the engine must not serve.

    Raised on the node plane it becomes ``SystemExit(78)``: SGLang swallows ordinary
    exceptions of plugins and would serve unpatched.
    """

    def __init__(self, adapter: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"adapter {adapter} refused: {reason}", hint=hint)
        self.adapter = adapter
        self.reason = reason


class ShardError(SparkserveError):
    """An Engram shard is missing, truncated, foreign or corrupt."""

    exit_code = ExitCode.UNFIT

    def __init__(
        self, path: str, message: str, *, offset_bytes: int | None = None, hint: str | None = None
    ) -> None:
        place = path if offset_bytes is None else f"{path} at byte {offset_bytes}"
        super().__init__(f"{place}: {message}", hint=hint)
        self.path = path
        self.offset_bytes = offset_bytes


class EndpointError(SparkserveError):
    """The OpenAI-compatible endpoint did not answer, or answered with an error.

    status: HTTP status, or None where no answer came at all (a transport failure is
    never a wrong answer).
    """

    exit_code = ExitCode.FINDINGS

    def __init__(self, message: str, *, status: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
