"""A job on one node: its last word, lost connections, other packers, and what it leaves there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest

from sparkserve.errors import ConnectionLostError, RemoteError
from sparkserve.model.pack import PackCode, PackDone, PackEvent, PackFailed, PackJob, PackProgress
from sparkserve.ops import node_job
from sparkserve.ops.node_job import Ears, NodeJob, run_job
from sparkserve.transport.host import ForwardedPort, Result

DONE = PackDone(
    manifest="/out/manifest-r0of1.json", manifest_digest="0" * 64, layers=(), seconds=1.0,
    written_bytes=5,
)  # fmt: skip
LOCKED = PackFailed(code=PackCode.LOCKED, message="process 7 packs there", exit_code=2)
MOVED = PackProgress(layer=1, phase="pack", done_bytes=1, total_bytes=2, bytes_per_s=1.0)


@dataclass
class Turn:
    """One attempt: what the node says, and how its stream ends."""

    events: Sequence[PackEvent] = ()
    status: Literal["exited", "lost"] = "exited"
    exit_code: int | None = 0
    stderr: str = ""


@dataclass
class ScriptedHost:
    """A node that plays its turns; the last one again and again."""

    turns: list[Turn]
    name: str = "spark1"
    puts: dict[str, tuple[str, int]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    argvs: list[Sequence[str]] = field(default_factory=list)
    on_stream: Callable[[], None] = lambda: None

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        self.puts[path] = (content.decode(), mode)

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float) -> Result:
        assert argv[:3] == ["rm", "-f", "--"]
        self.removed += argv[3:]
        return Result(self.name, "", "exited", 0, "", "", 0.0)

    def script(self, text: str, *, timeout_s: float) -> Result:
        raise AssertionError("no script is run")

    def stream(
        self, argv: Sequence[str], *, on_line: Callable[[str], None], cancel: threading.Event
    ) -> Result:
        self.argvs.append(argv)
        self.on_stream()
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        for event in turn.events:
            on_line(event.model_dump_json())
        code = turn.exit_code if turn.status == "exited" else None
        return Result(self.name, "", turn.status, code, "", turn.stderr, 0.0)

    def forward(self, remote_port: int) -> ForwardedPort:
        raise AssertionError("nothing is forwarded")

    def close(self) -> None:
        return


@dataclass
class Told:
    events: list[PackEvent] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def run(
    host: ScriptedHost, *, token: str | None = None, cancelled: bool = False, patience_s: float = 60
) -> tuple[PackDone | PackFailed, Told]:
    told, cancel = Told(), threading.Event()
    if cancelled:
        host.on_stream = cancel.set
    ears = Ears(told.events.append, told.notices.append, cancel, patience_s)
    job = NodeJob(
        command="pack",
        python="/venv/bin/python",
        root="/srv",
        make=lambda file: PackJob(source="/m", out="/out", tp=1, rank=0, token_file=file),
        token=token,
    )
    return run_job(host, job, ears), told


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_job, "_AGAIN_S", 0.0)


def test_last_word_is_the_result_and_every_event_is_told() -> None:
    host = ScriptedHost([Turn([MOVED, DONE])])
    end, told = run(host)
    assert end == DONE
    assert told.events == [MOVED, DONE]
    ((path, (text, mode)),) = host.puts.items()
    assert path.startswith("/srv/state/pack/")
    assert mode == 0o600
    assert PackJob.model_validate_json(text).source == "/m"
    assert host.argvs[0][-4:] == ["/venv/bin/python", "pack", path, ""]


def test_token_goes_into_a_file_of_its_own_and_both_are_gone_after_the_first_word() -> None:
    host = ScriptedHost([Turn([MOVED, DONE])])
    run(host, token="hf_Secret")
    (token_file,) = [path for path in host.puts if path.endswith(".token")]
    (job_file,) = [path for path in host.puts if path.endswith(".json")]
    assert host.puts[token_file] == ("hf_Secret", 0o600)
    assert PackJob.model_validate_json(host.puts[job_file][0]).token_file == token_file
    assert "hf_Secret" not in host.puts[job_file][0] + str(host.argvs)
    assert host.removed == [job_file, token_file]


def test_lost_connection_is_tried_again_and_told_once() -> None:
    lost = Turn(status="lost")
    host = ScriptedHost([Turn([MOVED], "lost"), lost, lost, Turn([DONE])])
    end, told = run(host)
    assert end == DONE
    assert told.notices == ["spark1: the connection was lost; trying again"]
    assert len(host.argvs) == 4


def test_node_that_stays_silent_is_given_up() -> None:
    with pytest.raises(ConnectionLostError, match="what was packed is kept"):
        run(ScriptedHost([Turn(status="lost")]), patience_s=0)


def test_own_packer_of_the_lost_connection_is_waited_for() -> None:
    host = ScriptedHost([Turn([MOVED], "lost"), Turn([LOCKED], exit_code=2), Turn([DONE])])
    assert run(host)[0] == DONE


def test_packer_of_somebody_else_is_not() -> None:
    end, _ = run(ScriptedHost([Turn([LOCKED], exit_code=2)]))
    assert end == LOCKED


@pytest.mark.parametrize("code", [-9, 137, 1])
def test_packer_without_a_last_word_is_a_failure_with_its_last_lines(code: int) -> None:
    host = ScriptedHost([Turn(exit_code=code, stderr="Traceback\nMemoryError")])
    with pytest.raises(RemoteError, match="without a last word\nTraceback\nMemoryError"):
        run(host)
    assert host.removed, "it left no orders behind"


def test_cancelled_job_is_interrupted_whatever_its_exit_was() -> None:
    for turn in (Turn(exit_code=143), Turn(status="lost")):
        end, _ = run(ScriptedHost([turn]), cancelled=True)
        assert isinstance(end, PackFailed)
        assert (end.code, end.exit_code) == (PackCode.INTERRUPTED, 130)


def test_line_that_is_no_event_is_passed_on() -> None:
    host = ScriptedHost([Turn([DONE])])
    stream = host.stream

    def noisy(
        argv: Sequence[str], *, on_line: Callable[[str], None], cancel: threading.Event
    ) -> Result:
        on_line("Warning: permanently added")
        return stream(argv, on_line=on_line, cancel=cancel)

    host.stream = noisy  # type: ignore[method-assign]
    end, told = run(host)
    assert end == DONE
    assert told.notices == ["spark1: Warning: permanently added"]
