"""Status, launch and stop results: what a person needs, within the screen."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from sparkserve.model.node_state import RunStatus
from sparkserve.model.record import Endpoint
from sparkserve.report.console import Answer
from sparkserve.report.launch_view import exposure_warning, result_event, served_answer
from sparkserve.report.status_view import status_answer
from sparkserve.report.text import cells
from tests import golden, scenes
from tests.report import runs

GOLDEN = Path(__file__).parent / "golden"
STATUSES = {
    "serving": runs.status(),
    "failed": runs.status(
        runs.rank(0),
        runs.dead_rank(1, "failed", "engine killed by signal 9"),
        outcome="failed",
        healthy=False,
    ),
    "unreachable": runs.status(
        runs.rank(0),
        runs.dead_rank(
            1, "unreachable", "spark2: no answer from 10.0.0.12:22: the node is off, or\nelsewhere"
        ),
        outcome="unreachable",
    ),
    "launching": runs.status(
        runs.rank(0, state="starting"),
        runs.dead_rank(1, "absent", ""),
        outcome="launching",
        healthy=False,
        ready_s=None,
        decode_tokens_per_s=None,
    ),
    "stopped": runs.status(
        runs.dead_rank(0, "stopped", "rank 1: stopped on request", origin_rank=1),
        runs.dead_rank(1, "stopped", "stopped on request", origin_rank=1),
        outcome="stopped",
        healthy=None,
    ),
    "ended_by_one": runs.status(
        runs.dead_rank(0, "failed", "rank 1: engine killed by SIGKILL", origin_rank=1),
        runs.dead_rank(1, "failed", "engine killed by SIGKILL", origin_rank=1),
        runs.dead_rank(2, "unreachable", "spark3: no answer from 10.0.0.13:22"),
        outcome="failed",
        healthy=None,
    ),
}


def test_what_one_rank_brought_upon_the_others_is_said_once() -> None:
    text = text_of(status_answer(STATUSES["ended_by_one"], width=80))
    assert text.count("SIGKILL") == 1
    assert "ended because of rank 1 (spark2): engine killed by SIGKILL\n" in text
    assert f"next: sparkserve logs spark2 --run {runs.RUN_ID}\n" in text


def test_rank_that_never_spoke_is_blamed_by_what_the_others_say_of_it() -> None:
    lost = runs.status(
        runs.dead_rank(0, "failed", "rank 1 lost: silent for 6 s", origin_rank=1),
        runs.dead_rank(1, "absent", ""),
        outcome="failed",
    )
    text = text_of(status_answer(lost, width=80))
    assert "ended because of rank 1 (spark2): rank 1 lost: silent for 6 s\n" in text


def test_stop_is_offered_only_where_something_may_run() -> None:
    dead = runs.status(runs.dead_rank(0, "failed", "x", origin_rank=0), outcome="failed")
    assert "sparkserve stop" not in text_of(status_answer(dead, width=80))
    assert "sparkserve stop" in text_of(status_answer(STATUSES["ended_by_one"], width=80))


def text_of(answer: Answer) -> str:
    return "".join(f"{line.plain}\n" for line in answer.lines)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", STATUSES)
def test_status(name: str, width: int) -> None:
    text = text_of(status_answer(STATUSES[name], width=width))
    # Only why a rank is not well may be longer than the screen: it is never cut.
    fitting = [line for line in text.splitlines() if not line.startswith(("rank ", "ended "))]
    assert all(cells(line) <= width for line in fitting)
    golden.check(GOLDEN / f"status_{name}_{width}.txt", text)


def test_nothing_is_cut_in_a_pipe() -> None:
    text = text_of(status_answer(STATUSES["serving"], width=None))
    assert "#queue-req: 0" in text


@pytest.mark.parametrize("name", STATUSES)
def test_programs_get_the_whole_status(name: str) -> None:
    data = json.loads(json.dumps(status_answer(STATUSES[name], width=80).data))
    assert RunStatus.model_validate(data["status"]) == STATUSES[name]


def test_quiet_status_is_the_outcome() -> None:
    assert status_answer(STATUSES["failed"], width=80).short == ("failed",)


@pytest.mark.parametrize("width", [80, 160])
def test_what_is_said_once_a_run_serves(width: int) -> None:
    answer = served_answer(runs.record(), runs.status(), width=width)
    golden.check(GOLDEN / f"served_{width}.txt", text_of(answer))
    assert answer.short == ("http://127.0.0.1:8888/v1",)


def test_nodes_that_cannot_be_asked_after_the_launch_leave_the_rest() -> None:
    text = text_of(served_answer(runs.record(), None, width=80))
    assert "serving tiny at http://127.0.0.1:8888/v1" in text
    assert "RANK" not in text


def pasted(answer: Answer) -> list[str]:
    """The curl command as a shell would split it."""
    lines = text_of(answer).splitlines()
    start = next(i for i, line in enumerate(lines) if "curl http" in line)
    end = next(i for i in range(start, len(lines)) if not lines[i].endswith("\\"))
    command = "\n".join(lines[start : end + 1])
    return shlex.split(command[command.index("curl http") :])


def test_curl_command_can_be_pasted() -> None:
    argv = pasted(served_answer(runs.record(), runs.status(), width=80))
    assert argv[:2] == ["curl", "http://127.0.0.1:8888/v1/chat/completions"]
    body = json.loads(argv[argv.index("-d") + 1])
    assert body == {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


def open_record(key_file: str = "~/my key"):
    return runs.record(
        profile=scenes.profile(
            parallel={"tp": 2}, serving={"host": "0.0.0.0", "api_key_file": key_file}
        ),
        endpoint=Endpoint(url="http://10.0.0.11:8888/v1", reachable_from="network", model="tiny"),
    )


def test_key_is_read_by_the_shell_and_never_shown() -> None:
    text = text_of(served_answer(open_record(), None, width=80))
    assert """-H "Authorization: Bearer $(cat ~/'my key')" """.strip() in text
    assert "ssh -N -L" not in text


def test_loopback_endpoint_on_another_machine_needs_a_tunnel() -> None:
    text = text_of(served_answer(runs.record(), None, width=80))
    assert "ssh -N -L 8888:127.0.0.1:8888 10.0.0.11\n" in text


def test_endpoint_for_the_whole_network_is_warned_about() -> None:
    assert exposure_warning(runs.record()) is None
    assert "every interface of spark1" in str(exposure_warning(open_record()))


def test_result_line_says_how_it_came_out() -> None:
    event = result_event(runs.NOW, runs.RUN_ID, {"ok": False, "error": {"exit_code": 6}})
    assert (event.kind, event.message, event.data["ok"]) == ("result", "failed", False)
