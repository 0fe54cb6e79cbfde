"""The light engine starts, meets, reports and fails as SGLang does, in the ways it is told."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkserve.model.engine_spec import EngineSpec, GuardSpec, InstallReport
from sparkserve.sim.light_options import parse
from tests.ports import free_port
from tests.sim.light import Rank, StartRank, start_group, wait_until


def test_the_log_names_the_phases_in_sglangs_order(start: StartRank) -> None:
    rank = start("--max-total-tokens", "5000")
    rank.wait_ready()
    log = rank.log()
    marks = ["server_args={", "Init parallel begin.", "Init parallel ends.", "Load weight begin.",
             "Loading safetensors checkpoint shards:  50% Completed | 1/2", "Load weight end.",
             "KV Cache is allocated.", "max_total_num_tokens=5000,", "Uvicorn running on",
             "The server is fired up and ready to roll!"]  # fmt: skip
    places = [log.index(mark) for mark in marks]
    assert places == sorted(places)


def test_health_is_503_until_the_warm_up_is_through(start: StartRank) -> None:
    rank = start("--light-warmup-seconds", "1")
    # no port, then 503, then 200: the port opens before the engine is ready
    assert wait_until(rank.status, "the port opens") == 503
    wait_until(lambda: rank.status() == 200, "ready")
    assert "fired up" in rank.log()


def test_three_ranks_meet_and_only_the_head_answers(start: StartRank) -> None:
    ranks = start_group(start, 3)
    for rank in ranks:
        rank.wait_ready()
    assert ranks[0].chat("capital of France")["choices"][0]["finish_reason"] == "stop"
    for number, rank in enumerate(ranks):
        assert f" TP{number}] Load weight end" in rank.log()
    for worker in ranks[1:]:
        assert worker.status("/v1/models") == 404
        assert worker.request("POST", "/v1/chat/completions", {})[0] == 404


def test_no_rank_is_ready_while_one_is_missing(start: StartRank) -> None:
    meeting = f"127.0.0.1:{free_port()}"
    common = ["--tp", "2", "--nnodes", "2", "--dist-init-addr", meeting, "--node-rank"]
    head = start(*common, "0")
    head.wait_log("Init parallel begin.")
    # a stranger who only looks at the port is not a rank
    host, port = meeting.split(":")
    wait_until(lambda: can_connect(host, int(port)), "rendezvous listens")
    assert head.status() is None
    assert "Init parallel ends" not in head.log()
    start(*common, "1").wait_ready()
    head.wait_ready()


def can_connect(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("flag", ["--port", "--dist-init-addr"])
def test_a_taken_port_ends_the_engine_with_the_reason(start: StartRank, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if flag == "--port":
            rank = start("--port", str(port))
        else:
            rank = start("--nnodes", "2", "--tp", "2", flag, f"127.0.0.1:{port}")
        assert rank.wait_exit() != 0
        assert "address already in use" in rank.log()


def test_a_missing_interface_ends_the_meeting(start: StartRank) -> None:
    rank = start("--nnodes", "2", "--tp", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}",
                 env={"GLOO_SOCKET_IFNAME": "nosuch0"})  # fmt: skip
    assert rank.wait_exit() == -signal.SIGKILL
    assert "Unable to find address for: nosuch0" in rank.log()


def test_sigterm_ends_both_processes_with_status_0(start: StartRank) -> None:
    rank = start()
    rank.wait_ready()
    scheduler = rank.scheduler()
    assert scheduler is not None
    rank.process.terminate()
    assert rank.wait_exit() == 0
    assert not alive(scheduler)


def test_the_scheduler_dies_with_its_parent(start: StartRank) -> None:
    rank = start()
    rank.wait_ready()
    scheduler = rank.scheduler()
    rank.process.kill()
    rank.wait_exit()
    wait_until(lambda: not alive(scheduler), "scheduler gone")


def test_the_parent_dies_of_its_scheduler_by_sigkill_as_sglang_does(start: StartRank) -> None:
    rank = start()
    rank.wait_ready()
    scheduler = rank.scheduler()
    assert scheduler is not None
    os.kill(scheduler, signal.SIGKILL)
    assert rank.wait_exit() == -signal.SIGKILL
    assert "crashed with exit code -9" in rank.log()


def alive(pid: int | None) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_lost_peer_hangs_the_head_by_default(start: StartRank) -> None:
    ranks = start_group(start, 2, "--enable-metrics")
    for rank in ranks:
        rank.wait_ready()
    ranks[1].process.kill()
    ranks[1].wait_exit()
    body = {"messages": [{"role": "user", "content": "hello"}]}
    # a merely slow answer would be through by the time the counter is read
    wait_until(lambda: hangs(ranks[0], body) and running(ranks[0]) >= 1, "the head hangs")
    assert ranks[0].process.poll() is None


def running(rank: Rank) -> float:
    lines = rank.request("GET", "/metrics")[1].splitlines()
    return float(next(x for x in lines if x.startswith("sglang:num_running_reqs{")).split()[-1])


def hangs(rank: Rank, body: dict[str, Any]) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", rank.port, timeout=0.3)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        try:
            connection.getresponse().read()
        except TimeoutError:
            return True
    return False


def test_a_lost_peer_ends_the_others_where_told(start: StartRank) -> None:
    ranks = start_group(start, 3, "--light-peer-loss", "exit", "--light-peer-loss-delay", "0.1")
    for rank in ranks:
        rank.wait_ready()
    ranks[2].process.kill()
    assert [rank.wait_exit() for rank in ranks[:2]] == [1, 1]
    assert "NCCL error" in ranks[0].log()


# -- reports -------------------------------------------------------------------------------------


def write_spec(folder: Path) -> tuple[EngineSpec, dict[str, str]]:
    spec = EngineSpec(
        run_id="run-1", profile="p", profile_digest="d" * 64, node="spark1", rank=0, world_size=1,
        run_dir=str(folder / "run"), root=str(folder), argv=("/bin/true",), env={}, port=8888,
        guard=GuardSpec(port=20900, head_address="127.0.0.1"),
    )  # fmt: skip
    path = folder / "engine.json"
    path.write_text(spec.model_dump_json())
    return spec, {"SPARKSERVE_ENGINE_SPEC": str(path)}


def reports(spec: EngineSpec) -> list[InstallReport]:
    folder = Path(spec.run_dir, "reports")
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [InstallReport.model_validate_json(file.read_text()) for file in files]


def test_the_scheduler_reports_what_it_was_told(start: StartRank, tmp_path: Path) -> None:
    spec, env = write_spec(tmp_path)
    rank = start(env=env)
    rank.wait_ready()
    [report] = reports(spec)
    assert (report.pid, report.role, report.status) == (rank.scheduler(), "scheduler", "installed")
    assert (report.run_id, report.engine, report.told) == ("run-1", "light", spec.agreement)


@pytest.mark.parametrize("plugged", [True, False])
def test_the_log_shows_the_key_only_where_sparkserves_plugin_is_not_in_play(
    start: StartRank, tmp_path: Path, *, plugged: bool
) -> None:
    _, env = write_spec(tmp_path)
    rank = start("--api-key", "sesame", env=env if plugged else None)
    rank.wait_ready()
    assert ("sesame" in rank.log()) != plugged


def test_a_refusing_plugin_exits_78_and_reports_why(start: StartRank, tmp_path: Path) -> None:
    spec, env = write_spec(tmp_path)
    rank = start("--light-fault", "refuse-plugin", env=env)
    assert rank.wait_exit() == 78
    assert "sparkserve: FATAL " in rank.log()
    [report] = reports(spec)
    assert report.status == "refused"
    assert report.reason in rank.log()


@pytest.mark.parametrize(("fault", "count"), [("wrong-report", 1), ("no-report", 0)])
def test_reports_can_be_wrong_or_missing(
    start: StartRank, tmp_path: Path, fault: str, count: int
) -> None:
    spec, env = write_spec(tmp_path)
    rank = start("--light-fault", fault, env=env)
    rank.wait_ready()
    assert len(reports(spec)) == count
    assert all(report.told != spec.agreement for report in reports(spec))


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("crash-at-import", 1, "ImportError: "),
        ("crash-while-loading", -signal.SIGKILL, "Received sigquit from a child process"),
        ("exit-after-ready=0", 1, "CUDA error"),
    ],
)
def test_crashes_leave_their_status_and_line(
    start: StartRank, fault: str, status: int, line: str
) -> None:
    rank = start("--light-fault", fault)
    assert rank.wait_exit() == status
    assert line in rank.log()


def test_a_file_can_trigger_the_end(start: StartRank, tmp_path: Path) -> None:
    trigger = tmp_path / "now"
    rank = start("--light-fault", f"exit-after-ready={trigger}")
    rank.wait_ready()
    assert rank.chat("hello")
    trigger.touch()
    assert rank.wait_exit() == 1


@pytest.mark.parametrize(
    ("fault", "last"),
    [
        ("hang-in-rendezvous", "Init parallel begin."),
        ("hang-while-loading", "50% Completed | 1/2"),
        ("slow-load=3600", "0% Completed | 0/2"),
    ],
)
def test_a_hanging_rank_keeps_the_others_waiting(start: StartRank, fault: str, last: str) -> None:
    rank = start("--light-fault", fault)
    rank.wait_log(last)
    assert rank.process.poll() is None
    assert rank.status() is None
    assert "Load weight end" not in rank.log()


def test_a_rank_that_fails_while_loading_keeps_the_head_from_being_ready(start: StartRank) -> None:
    ranks = start_group(start, 2, "--light-fault", "crash-while-loading@1")
    assert ranks[1].wait_exit() == -signal.SIGKILL
    ranks[0].wait_log("Load weight end")
    assert ranks[0].process.poll() is None
    assert "KV Cache" not in ranks[0].log()
    assert ranks[0].status() is None


def test_a_head_that_is_told_so_ends_when_a_rank_fails_while_loading(start: StartRank) -> None:
    faults = ["--light-fault", "crash-while-loading@1", "--light-peer-loss", "exit"]
    ranks = start_group(start, 2, *faults)
    assert ranks[0].wait_exit() == 1
    assert "NCCL error" in ranks[0].log()


@pytest.mark.parametrize(
    ("fault", "answer"), [("garbage-answer", "!!!!!!!!"), ("empty-answer", "")]
)
def test_answers_can_be_worthless(start: StartRank, fault: str, answer: str) -> None:
    rank = start("--light-fault", fault)
    rank.wait_ready()
    assert (
        rank.chat("capital of France", max_tokens=8)["choices"][0]["message"]["content"] == answer
    )


def test_health_can_fail_for_ever(start: StartRank) -> None:
    rank = start("--light-fault", "health-500")
    rank.wait_log("fired up")
    assert rank.status() == 500


def test_sigterm_can_be_ignored(start: StartRank) -> None:
    rank = start("--light-fault", "ignore-sigterm")
    rank.wait_ready()
    rank.process.terminate()
    assert rank.chat("still there?")
    assert rank.process.poll() is None


def test_an_orphan_outlives_its_parent(start: StartRank) -> None:
    rank = start("--light-fault", "orphan")
    rank.wait_ready()
    scheduler = rank.scheduler()
    assert scheduler is not None
    try:
        rank.process.terminate()
        assert rank.wait_exit() == 0
        assert alive(scheduler)
        assert os.getsid(scheduler) == scheduler
    finally:
        os.kill(scheduler, signal.SIGKILL)


@pytest.mark.parametrize(
    "argv",
    [
        ["--light-fault", "no-such"],
        ["--light-fault", "slow-load"],
        ["--light-fault", "orphan=1"],
        ["--nnodes", "2"],
        ["--nnodes", "2", "--node-rank", "2", "--dist-init-addr", "a:1"],
    ],
)
def test_mistakes_on_the_command_line_are_usage_errors(
    argv: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--model-path", "x", *argv])
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_flags_of_sglang_without_meaning_here_are_accepted() -> None:
    options = parse(
        ["--model-path", "x", "--trust-remote-code", "--ep-size", "4", "--tp-size", "4",
         "--nnodes", "4", "--node-rank", "3", "--dist-init-addr", "[fe80::1]:20000",
         "--mem-fraction-static", "0.8", "--speculative-algorithm", "DSPARK"]
    )  # fmt: skip
    assert (options.tp, options.rank, options.dist_address) == (4, 3, ("fe80::1", 20000))
    assert options.served_name == "x"


def test_nothing_but_the_standard_library_is_imported_without_a_spec() -> None:
    code = (
        "import sys; before = set(sys.modules); import sparkserve.sim.light_engine\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sparkserve"]
