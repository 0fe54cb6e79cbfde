"""Run one pack job on one node to its last word, over a connection that may be lost meanwhile.

The job lives with the connection: the node ends it when nobody listens any more, and the next
call goes on from what was written. A lost connection is opened again as long as anything moves.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sparkserve.errors import ConnectionLostError, ExitCode, NodeError, RemoteError
from sparkserve.model.pack import (
    PackCode,
    PackDone,
    PackEvent,
    PackFailed,
    PackJob,
    VerifyJob,
    read_event,
)
from sparkserve.transport.host import Host, Result

_AGAIN_S = 2.0
"""Between two tries to reach a node again."""
_SHORT_S = 20.0
# $1 = interpreter, $2 = command, $3 = job, $4 = token or empty. A job that ends before its first
# word leaves no files: the signal that ends its process group meets this shell too, and it obeys
# after the job. -P: a folder named sparkserve where the user stands is not the one installed.
_RUN = """\
trap 'rm -f -- "$3" "$4"' EXIT
trap 'exit 143' HUP INT TERM
"$1" -P -m sparkserve.node "$2" --job "$3"
"""


@dataclass(frozen=True)
class NodeJob:
    """What a node is asked to do."""

    command: Literal["pack", "verify-engram"]
    python: str
    root: str
    make: Callable[[str | None], PackJob | VerifyJob]
    """The job, given the path of the token's file on the node, or None without a token."""
    token: str | None = None


@dataclass(frozen=True)
class Ears:
    """Who hears what happens, and who may end it."""

    on_event: Callable[[PackEvent], None]
    on_notice: Callable[[str], None]
    cancel: threading.Event
    patience_s: float
    """How long a lost node is tried again without a word from it."""


def run_job(host: Host, job: NodeJob, ears: Ears) -> PackDone | PackFailed:
    """Run a job until it has ended.

    Raises:
        NodeError: the node could not be reached any more, or the job ended without a last word.
    """
    heard_s = time.monotonic()
    was_lost = False
    while True:
        attempt = _Attempt(host, job, ears)
        end = attempt.run()
        heard_s = max(heard_s, attempt.heard_s)
        silent = time.monotonic() - heard_s > ears.patience_s
        if ears.cancel.is_set() and not isinstance(end, PackDone):
            return _interrupted()
        if isinstance(end, PackFailed) and end.code == PackCode.LOCKED and was_lost and not silent:
            # Our own job of the lost connection: it ends as soon as the node knows of the loss.
            ears.cancel.wait(_AGAIN_S)
        elif isinstance(end, PackDone | PackFailed):
            return end
        elif silent:
            raise end
        else:
            if not was_lost or attempt.spoke:
                ears.on_notice(f"{host.name}: the connection was lost; trying again")
            was_lost = True
            ears.cancel.wait(_AGAIN_S)


class _Attempt:
    """One connection's worth of a job."""

    def __init__(self, host: Host, job: NodeJob, ears: Ears) -> None:
        self._host = host
        self._job = job
        self._ears = ears
        self._last: PackDone | PackFailed | None = None
        self._files: list[str] = []
        self.heard_s = 0.0
        self.spoke = False

    def run(self) -> PackDone | PackFailed | ConnectionLostError:
        """The job's last word, or the loss of the connection.

        Raises:
            NodeError: anything else that went wrong.
        """
        base = f"{self._job.root}/state/pack/{secrets.token_hex(6)}"
        job_file = f"{base}.json"
        token_file = f"{base}.token" if self._job.token else None
        self._files = [job_file, *([token_file] if token_file else [])]
        lost = ConnectionLostError(
            self._host.name,
            "the connection was lost; what was packed is kept",
            hint="run the same command again: it goes on from there",
        )
        try:
            if token_file is not None and self._job.token is not None:
                self._host.put(self._job.token.encode(), token_file, mode=0o600)
            text = self._job.make(token_file).model_dump_json(indent=1)
            self._host.put(text.encode(), job_file, mode=0o600)
            files = (job_file, token_file or "")
            argv = ["sh", "-c", _RUN, "sparkserve", self._job.python, self._job.command, *files]
            result = self._host.stream(argv, on_line=self._take, cancel=self._ears.cancel)
        except ConnectionLostError:
            return lost
        if result.status != "lost":
            if not self.spoke:
                self._forget()
            return self._last or self._wordless(result)
        return self._last or lost

    def _take(self, line: str) -> None:
        self.heard_s = time.monotonic()
        if not self.spoke:
            self.spoke = True
            # It has read its orders: from now on nothing of them, least of all the token, need lie
            # on the node, where a job that is killed would leave them.
            self._forget()
        try:
            event = read_event(line)
        except ValueError:
            self._ears.on_notice(f"{self._host.name}: {line[:300]}")
            return
        if isinstance(event, PackDone | PackFailed):
            self._last = event
        self._ears.on_event(event)

    def _forget(self) -> None:
        with contextlib.suppress(NodeError):
            self._host.run(["rm", "-f", "--", *self._files], timeout_s=_SHORT_S)

    def _wordless(self, result: Result) -> PackFailed:
        if self._ears.cancel.is_set():
            return _interrupted()
        code = result.exit_code
        killed = code is not None and (code < 0 or code == 137)
        how = "was killed" if killed else f"ended with exit {code}"
        tail = result.tail(5)
        raise RemoteError(
            self._host.name,
            f"the packer {how} without a last word" + (f"\n{tail}" if tail else ""),
            result=result,
            hint="run the same command again: it goes on from what was written",
        )


def _interrupted() -> PackFailed:
    return PackFailed(
        code=PackCode.INTERRUPTED,
        message="interrupted; what was packed is kept",
        hint="run the same command again: it goes on from there",
        exit_code=int(ExitCode.INTERRUPTED),
    )
