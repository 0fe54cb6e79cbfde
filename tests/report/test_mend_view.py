"""What is told of mends: never more than was done."""

from __future__ import annotations

import pytest

from sparkserve.model.mend import Change, FixResult
from sparkserve.report.mend_view import fix_lines

ONE, TWO = (
    Change(mend="mtu", node=node, title="MTU", argv=("true",), undo_argv=("false",))
    for node in ("spark1", "spark2")
)


@pytest.mark.parametrize(
    ("verb", "done", "title"),
    [
        ("fix", (ONE.id, TWO.id), "fix  mended"),
        ("fix", (ONE.id,), "fix  1 of 2 mended"),
        ("undo", (), "undo  0 of 2 taken back"),
    ],
)
def test_the_title_tells_how_many_were_done(verb: str, done: tuple[str, ...], title: str) -> None:
    result = FixResult(verb=verb, changes=(ONE, TWO), done=done, errors=("spark2: no sudo",))
    assert fix_lines(result)[0].plain == title


def test_a_plan_does_not_claim_a_change() -> None:
    (title, *_) = fix_lines(FixResult(verb="fix", changes=(ONE,), dry_run=True))
    assert title.plain == "fix  would be mended; nothing was changed"
