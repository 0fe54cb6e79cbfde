"""Every error says what, where and what next, and ends with the right exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkserve.errors import (
    AuthenticationError,
    BusyError,
    CheckFailed,
    ConfigError,
    ConnectionLostError,
    EndpointError,
    EngineRefused,
    ExitCode,
    HostKeyError,
    NotReadyError,
    RemoteError,
    ShardError,
    SparkserveError,
    UnreachableError,
)
from sparkserve.model.finding import Finding
from sparkserve.ops import launch as launch_ops
from sparkserve.ops import status as status_ops
from sparkserve.paths import state_dir
from tests.cli.conftest import Run
from tests.report import launch_events


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("lauch",), "Did you mean 'launch'?"),
        (("profile", "lst"), "Did you mean 'list'?"),
        (("profile", "xyz"), "There are: list, show, validate."),
        (("launch", "--jso"), "Possible options: --json"),
        (("launch", "--nodes", "many"), "--nodes"),
        (("launch", "--nodes", "0"), "--nodes"),
        (("launch", "--json", "--quiet"), "contradict each other"),
        (("launch", "-p", "nope"), "no profile 'nope'"),
        (("launch", "-p", "local-dmo"), "did you mean local-demo?"),
        (("launch", "--set", "serving.port"), "expected key=value"),
        (("launch", "--set", "serving.prot=1"), "did you mean serving.port?"),
        (("launch", "--set", "serving.port=high"), 'serving.port = "high", expected'),
        (("launch", "--port", "80"), "serving.port = 80, expected"),
        (("launch", "--gpu-mem", "1.5"), "context.mem_fraction_static = 1.5, expected"),
        (("launch", "--nodes", "4"), "only this machine is known, expected 4 nodes"),
        (
            ("launch", "-p", "local-demo", "--nodes", "2"),
            "only this machine is known, expected 2 nodes",
        ),
        (("launch", "-p", "local-demo", "--hosts", "a,b", "--nodes", "2"), "--nodes 2 contradicts"),
        (
            ("launch", "--tp", "2", "-p", "local-demo"),
            "only this machine is known, expected 2 nodes",
        ),
        (("launch", "--hosts", "a,b", "--cluster", "lab"), "--hosts and --cluster contradict"),
        (("launch", "--hosts", "a,,b"), "an empty host"),
        (("launch", "--hosts", "a,a"), "names the same host and port twice"),
        (("launch", "--hosts-file", "/none"), "cannot read hosts file /none"),
        (("launch", "--cluster", "lab"), "no cluster 'lab'"),
        (("status",), "nothing was launched from here"),
        (("status", "--cluster", "lab"), "nothing was launched on cluster lab"),
        (("status", "--run", "nope"), "no run 'nope'"),
        (("stop", "nope"), "no run 'nope'"),
        (("stop", "a", "--run", "b"), "two runs are named"),
        (("logs",), "nothing was launched from here"),
        (("chat", "Hello"), "nothing was launched from here"),
        (("chat", ""), "the question is empty"),
        (("profile", "show", "nope"), "no profile 'nope'"),
        (("profile", "validate"), "FILE"),
        (("cluster", "show", "nope"), "no cluster 'nope'"),
        (("cluster", "use"), "name one cluster"),
        (("cluster", "use", "nope"), "no cluster 'nope'"),
        (("cluster", "init", "lab"), "name the nodes with --hosts"),
        (("cluster", "init", "a/b", "--hosts", "a"), "cluster name 'a/b'"),
        (("cluster", "init", "lab", "--hosts", "a,b", "--fabric", "1"), "--fabric has 1 addresses"),
        (("cluster", "init", "lab", "--hosts", "a", "-i", "/none"), "--identity /none does not"),
        (("cluster", "trust"), "no node has a host key to trust"),
        (("completion", "tcsh"), "tcsh"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else "",
)
def test_usage_and_configuration_errors_end_with_2(
    run: Run, args: tuple[str, ...], words: str
) -> None:
    outcome = run(*args)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


def _finding(**changes: object) -> Finding:
    return Finding.model_validate(launch_events.finding(outcome="fail", verdict="FAIL", **changes))


ERRORS = [
    ConfigError("wrong", hint="right"),
    BusyError("busy"),
    UnreachableError("spark2", "no answer"),
    AuthenticationError("spark2", "no key"),
    HostKeyError("spark2", "unknown key"),
    ConnectionLostError("spark2", "lost"),
    RemoteError("spark2", "failed", result=None),
    NotReadyError("rank 1 died"),
    EngineRefused("engram_rows", "target moved"),
    ShardError("/x.engram", "cut short", offset_bytes=7),
    EndpointError("no answer"),
    CheckFailed("port", findings=[_finding()], exit_code=ExitCode.CONFIG),
    CheckFailed("memory", findings=[_finding(fault_class="memory")], exit_code=ExitCode.MEMORY),
    CheckFailed("cable", findings=[_finding(fault_class="hardware")], exit_code=ExitCode.UNFIT),
]
CODES = [2, 2, 3, 3, 3, 3, 6, 6, 6, 4, 1, 2, 5, 4]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """``failing(error)`` makes status and launch fail with it."""

    def fail_with(error: BaseException) -> None:
        def raise_it(*_: object) -> None:
            raise error

        monkeypatch.setattr(status_ops, "run", raise_it)
        monkeypatch.setattr(launch_ops, "run", raise_it)

    return fail_with


@pytest.mark.parametrize(("error", "code"), list(zip(ERRORS, CODES, strict=True)))
def test_every_known_error_has_its_code_in_every_form(
    run: Run, failing, error: SparkserveError, code: int
) -> None:
    failing(error)
    human = run("status")
    assert (human.code, human.out) == (code, "")
    told = (
        "1 check failed; nothing was changed" if isinstance(error, CheckFailed) else error.message
    )
    assert human.err.startswith(f"error: {told}\n")
    document = run("status", "--json")
    assert (document.code, document.err) == (code, "")
    assert document.data["error"]["message"] == error.message
    assert document.data["error"]["exit_code"] == code
    line = run("launch", "--json")
    assert line.code == code
    assert [record["kind"] for record in line.records] == ["result"]
    assert line.records[0]["data"]["error"]["kind"] == type(error).__name__
    assert run("status", "--quiet").err.startswith("error: ")


def test_hint_stands_apart(run: Run, failing) -> None:
    failing(ConfigError("two\nlines", hint="sparkserve status"))
    assert run("status").err == "error: two\nlines\n\nhint: sparkserve status\n"


def test_findings_of_a_failed_check_reach_programs(run: Run, failing) -> None:
    failing(ERRORS[-1])
    assert run("status", "--json").data["error"]["findings"][0]["check_id"] == "PORT.FREE"


def test_node_of_an_error_reaches_programs(run: Run, failing) -> None:
    failing(UnreachableError("spark2", "no answer"))
    assert run("status", "--json").data["error"]["node"] == "spark2"


def test_hostile_error_text_cannot_move_the_cursor(run: Run, failing) -> None:
    failing(NotReadyError("its last line:\n\x1b[2Jgone"))
    assert "\x1b" not in run("status").err


def test_ctrl_c_ends_with_130(run: Run, failing) -> None:
    failing(KeyboardInterrupt())
    outcome = run("status")
    assert (outcome.code, outcome.err) == (130, "error: interrupted\n")
    assert run("status", "--json").data["error"]["kind"] == "Interrupted"
    assert run("launch", "--json").records[0]["data"]["error"]["exit_code"] == 130


def test_bug_saves_its_traceback_and_ends_with_70(run: Run, failing) -> None:
    failing(ZeroDivisionError("oops"))
    outcome = run("status")
    assert outcome.code == 70
    assert "internal error, a bug in sparkserve: ZeroDivisionError: oops" in outcome.err
    (crash,) = (state_dir() / "crashes").iterdir()
    assert crash.stat().st_mode & 0o777 == 0o600
    assert str(crash).replace(os.environ["HOME"], "$HOME") in outcome.err
    text = crash.read_text()
    assert text.startswith("sparkserve 0.")
    assert "ZeroDivisionError: oops" in text
    assert "in raise_it" in text


def test_bug_on_a_full_disk_shows_its_traceback(run: Run, failing, monkeypatch) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sparkserve.files.replace_file", no_space)
    failing(ZeroDivisionError("oops"))
    outcome = run("status")
    assert outcome.code == 70
    assert "in raise_it" in outcome.err


def test_bug_tells_programs_where_it_is_saved(run: Run, failing) -> None:
    failing(ZeroDivisionError("oops"))
    error = run("status", "--json").data["error"]
    assert error["kind"] == "InternalError"
    assert error["exit_code"] == 70
    assert "/crashes/" in error["hint"]


def real(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("sparkserve")
    return subprocess.run([script, *args], text=True, check=False, **options)  # type: ignore[call-overload]


def test_results_that_cannot_be_written_are_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        outcome = real("version", stdout=full, stderr=subprocess.PIPE)
    assert outcome.returncode == 1
    assert outcome.stderr == "error: cannot write the result: No space left on device\n"


def test_reader_that_has_gone_is_no_error_to_talk_about() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    outcome = real("profile", "list", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert outcome.returncode == 141
    assert outcome.stderr == ""


def test_result_of_a_real_process_is_parseable() -> None:
    outcome = real("cluster", "show", "nope", "--json", capture_output=True)
    assert outcome.returncode == 2
    assert json.loads(outcome.stdout)["error"]["exit_code"] == 2
    assert outcome.stderr == ""
