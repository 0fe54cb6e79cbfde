"""Errors for people: each failed check once, with why and how to mend it."""

from __future__ import annotations

from sparkserve.errors import CheckFailed, ExitCode
from sparkserve.model.finding import Finding
from sparkserve.report.error_view import lines_of
from tests.report import launch_events


def busy(node: str, why: str) -> Finding:
    told = launch_events.finding(
        node=node,
        outcome="fail",
        verdict="FAIL",
        observed="port 8888 is taken",
        expected="a free port",
        why=why,
        fix="ss -ltnp",
    )
    return Finding.model_validate(told)


def test_what_a_check_says_alike_of_several_nodes_stands_once() -> None:
    findings = [busy("spark1", "one port"), busy("spark2", "one port"), busy("spark3", "other")]
    error = CheckFailed("x", findings=findings, exit_code=ExitCode.CONFIG, hint="df -h")
    assert [one.plain for one in lines_of(error)] == [
        "error: 3 checks failed; nothing was changed",
        "  FAIL    spark1: port 8888 is taken, expected a free port  (ENG_PORT_BUSY, PORT.FREE)",
        "  FAIL    spark2: port 8888 is taken, expected a free port  (ENG_PORT_BUSY, PORT.FREE)",
        "          why  one port",
        "          fix  ss -ltnp",
        "  FAIL    spark3: port 8888 is taken, expected a free port  (ENG_PORT_BUSY, PORT.FREE)",
        "          why  other",
        "          fix  ss -ltnp",
        "",
        "hint: df -h",
    ]


def test_hint_that_is_the_fix_stands_once() -> None:
    error = CheckFailed(
        "x", findings=[busy("spark1", "")], exit_code=ExitCode.CONFIG, hint="ss -ltnp"
    )
    assert "\n".join(one.plain for one in lines_of(error)).count("ss -ltnp") == 1
