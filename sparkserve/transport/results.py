"""How results and failures of commands are worded, the same for every kind of host."""

from __future__ import annotations

import posixpath
import shlex
from typing import Literal

from sparkserve.errors import RemoteError
from sparkserve.transport.host import Result
from sparkserve.transport.pump import OUTPUT_LIMIT_BYTES, Ending, Order, Sink
from sparkserve.transport.wrapper import meaning, shown
from sparkserve.units import format_bytes


def result_of(order: Order, sink: Sink, ending: Ending) -> Result:
    """The Result of a command that was driven to its end."""
    status: Literal["exited", "lost", "timed-out"] = "exited"
    exit_code: int | None = None
    if ending.how == "lost":
        status = "lost"
    elif ending.how == "late" or ending.code is None:
        status = "timed-out"
    else:
        exit_code = meaning(ending.code, elapsed_s=ending.elapsed_s, limit_s=order.limit_s)
        status = "exited" if exit_code is not None else "timed-out"
    return Result(
        order.node,
        shown(order.argv),
        status,
        exit_code,
        sink.stdout.decode("utf-8", errors="replace"),
        sink.stderr.decode("utf-8", errors="replace"),
        ending.elapsed_s,
    )


def nothing_of(order: Order, status: Literal["exited", "lost", "timed-out"], why: str) -> Result:
    """The Result of a command that never ran."""
    code = 127 if status == "exited" else None
    return Result(order.node, shown(order.argv), status, code, "", why, 0.0)


def too_much(order: Order) -> RemoteError:
    """The error for a command that wrote more than is kept."""
    text = shown(order.argv)
    limit = format_bytes(OUTPUT_LIMIT_BYTES)
    return RemoteError(
        order.node,
        f"more than {limit} of output: {text}",
        result=Result(order.node, text, "exited", None, "", "", 0.0),
        hint="let the command write a file, or stream its lines",
    )


def no_space(node: str, path: str, result: Result) -> RemoteError:
    """The error for a full disk, which names the node and the folder."""
    folder = posixpath.dirname(path)
    return RemoteError(
        node,
        f"no space left on {node}:{folder} while writing {path}; the old file is intact",
        result=result,
        hint=f"on {node}: df -h {shlex.quote(folder)}",
    )


def _text(data: bytes | bytearray) -> str:
    return bytes(data).decode("utf-8", errors="replace")
