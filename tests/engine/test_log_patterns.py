"""The table knows every line of the public collection, and nothing that healthy nodes print."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from sparkserve.engine.host_lines import REPLIES
from sparkserve.engine.patterns import Pattern
from sparkserve.engine.watcher import ALL_PATTERNS, match
from tests.casefiles import ALL, CASES

KNOWN = tomllib.loads((CASES / "watcher.toml").read_text())["pattern"]


def known_as(row: dict[str, Any]) -> Pattern | None:
    if row["stream"] == "reply":
        return next((p for p in REPLIES if p.regex.search(row["example"])), None)
    return match(row["example"])


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row["name"])
def test_example_of_a_public_failure_is_known_for_what_it_is(row: dict[str, Any]) -> None:
    found = known_as(row)
    assert found is not None
    assert found.weight == row["class"]
    assert set(found.codes) & set(row["codes"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("Unable to find address for: enp9", "no interface enp9 with an address"),
        ("Workspace is locked but allocation from 'a.py:1:f' requires 20.5 MB, current size is "
         "3.0 MB.", "a.py:1:f needs a workspace of 20.5 MB and has 3.0 MB"),
        ("DistStoreError: Timed out after 90 seconds waiting for clients. 2/4 clients joined.",
         "only 2 of 4 ranks met within 90 s"),
        ("WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000)",
         "waited 600000 ms in the collective ALLREDUCE"),
        ("[x] avail mem=8.73 GB", "8.73 GB of memory are available"),
        ("Capture prefill CUDA graph failed: no kernel image", "captured: no kernel image"),
    ],
)  # fmt: skip
def test_meaning_carries_the_words_and_figures_of_the_line(line: str, says: str) -> None:
    found = match(line)
    assert found is not None
    assert says in found.say(line)


def test_capture_that_failed_by_a_lost_connection_is_a_consequence() -> None:
    found = match("Exception: Capture cuda graph failed: pair.cc:534] Connection closed by peer")
    assert found is not None
    assert found.weight == "consequence"


def test_no_line_of_a_healthy_node_is_a_fault() -> None:
    quiet = [v for v in ALL if v.id.startswith("BASELINE")]
    assert quiet
    lines = [line for v in quiet for r in v.readings for line in r.text.splitlines()]
    faults = [line for line in lines if (p := match(line)) and p.weight in ("fault", "consequence")]
    assert faults == []


@pytest.mark.parametrize(
    "line",
    [
        "[W914 10:21:04.12 ProcessGroupNCCL.cpp:5023] [PG ID 0] using GPU 0 as device used by this",
        "spark1:812:945 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0",
        "[2026-09-14 10:21:04 TP0] Init torch distributed ends. mem usage=0.5 GB",
        "Accepted: 310 tokens, Drafted: 500 tokens",
        "[2026-09-14 10:21:04] Ignore import error when loading sglang.srt.models.x: no module",
    ],
)
def test_ordinary_line_of_an_engine_is_no_fault(line: str) -> None:
    found = match(line)
    assert found is None or found.weight not in ("fault", "consequence")


def test_names_are_unique_and_rows_complete() -> None:
    assert len({pattern.name for pattern in ALL_PATTERNS}) == len(ALL_PATTERNS)
    for pattern in ALL_PATTERNS:
        named = set(re.findall(r"\{(\w+)\}", pattern.meaning))
        assert named <= set(pattern.regex.groupindex), pattern.name
        if pattern.weight == "fault" and pattern.codes:
            assert pattern.fix, pattern.name
            assert pattern.source, pattern.name
