"""NCCL's own lines: which devices, which network, how many channels."""

from __future__ import annotations

import pytest

from sparkserve.checks.diagnose import diagnose
from sparkserve.model.finding import Finding
from sparkserve.model.reading import Reading

BOTH = (
    "spark1:812:945 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO];"
    " OOB enp1s0f0np0:10.100.0.1<0>\n"
)
ONE = BOTH.replace(" [1]roceP2p1s0f0:1/RoCE", "")
WISH = "tp: 2\nib_hca: rocep1s0f0,roceP2p1s0f0\n"


def judged(text: str, wish: str = WISH) -> list[Finding]:
    log = Reading(what="engine log", node="rank1", text=text, format="log")
    profile = Reading(what="profile", text=wish, format="yaml")
    found = diagnose([log, profile]).findings
    return [one for one in found if one.check_id.startswith("NCCL.LOG_")]


def test_all_wanted_devices_in_use_pass_and_are_named() -> None:
    (finding,) = judged(BOTH)
    assert (finding.verdict, finding.node) == ("PASS", "rank1")
    assert finding.observed == "NCCL uses rocep1s0f0, roceP2p1s0f0"


def test_device_that_nccl_leaves_out_is_named() -> None:
    (finding,) = judged(ONE)
    assert (finding.code, finding.verdict) == ("NET_HCA_NOT_USED", "FAIL")
    assert finding.observed == "NCCL uses rocep1s0f0, not roceP2p1s0f0"


@pytest.mark.parametrize(
    ("selector", "fails"),
    [("rocep1s0f0", False), ("^mlx5_3", False), ("=rocep1s0f0:1", False), ("mlx5", True)],
)
def test_selector_is_read_as_nccl_reads_it(selector: str, *, fails: bool) -> None:
    (finding,) = judged(ONE, f"tp: 2\nib_hca: '{selector}'\n")
    assert (finding.outcome == "fail") is fails


def test_tcp_is_a_fault_over_nodes_and_right_on_one() -> None:
    text = "spark1:812:945 [0] NCCL INFO Using network Socket\n"
    (finding,) = judged(text)
    assert finding.code == "NET_NCCL_OVER_TCP"
    assert judged(text, "tp: 1\n") == []
    ranks = "spark1:812:945 [0] NCCL INFO comm 0xaa rank 0 nranks 2 cudaDev 0 - Init START\n"
    assert [one.code for one in judged(text + ranks, "tp: 1\n")] == ["NET_NCCL_OVER_TCP"]
    assert [one.verdict for one in judged(text.replace("Socket", "IB"))] == ["PASS"]


@pytest.mark.parametrize(("count", "verdict"), [(0, "FAIL"), (4, "PASS")])
def test_channels_are_counted(count: int, verdict: str) -> None:
    text = f"spark1:812:945 [0] NCCL INFO {count} coll channels, 0 nvls channels, 4 p2p channels\n"
    assert [one.verdict for one in judged(text)] == [verdict]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[2026-09-14 10:27:11 TP0] replicated_split wqkv_a layer 3: DIFFER", "ENG_SELF_CHECK"),
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
         "ENG_NAN_LOGITS"),
    ],
)  # fmt: skip
def test_lines_that_must_not_appear_are_known(line: str, code: str) -> None:
    log = Reading(what="engine log", node="rank0", text=f"{line}\n", format="log")
    assert code in {one.code for one in diagnose([log]).findings if one.outcome == "fail"}
