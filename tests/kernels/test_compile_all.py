"""Every shipped form of every op compiles for the Spark's GPU, as fast as it is meant to be.

The gate needs no Spark, and no GPU at all. What it found is a page of the documentation; the same
compiler finds the same again, or the page is stale.
"""

import difflib
import json

import pytest
import triton

from tests.kernels.processes import COMPILES_FOR_SPARK, REPOSITORY, python

PAGE = REPOSITORY / "docs" / "measurements" / "sm121.md"
PINNED_TRITON = "3.8.0"
"""The Triton of the pinned SGLang; another one may take other registers and still be right."""
BUDGET_S = 600
"""A hang ends here; about two minutes on two cores are usual."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """The gate's exit, its facts of every form, and the page that it writes."""
    folder = tmp_path_factory.mktemp("gate")
    page = folder / "page.md"
    done = python(
        "-m", "sparkserve_kernels.compile", "--arch", "sm_121a", "--jobs", "2", "--json",
        "--table", str(page), cache=folder, timeout_s=BUDGET_S,
    )  # fmt: skip
    return done, [json.loads(line) for line in done.stdout.splitlines()], page


@COMPILES_FOR_SPARK
def test_every_shipped_form_may_ship(gate):
    done, rows, _ = gate
    faulty = [f"{row['op']} [{row['form']}]: {row['faults']}" for row in rows if row["faults"]]
    assert faulty == []
    assert done.returncode == 0, done.stderr[-2000:]
    assert rows


@pytest.mark.skipif(
    triton.__version__ != PINNED_TRITON,
    reason=f"needs Triton {PINNED_TRITON}, with which the page was made; this is another",
)
def test_the_page_says_what_they_compile_to(gate):
    _, _, made = gate
    before, now = (path.read_text(encoding="utf-8").splitlines() for path in (PAGE, made))
    changes = "\n".join(difflib.unified_diff(before, now, "the page", "the compiler", lineterm=""))
    assert changes == "", (
        f"{changes}\nhint: python -m sparkserve_kernels.compile --table docs/measurements/sm121.md"
    )
