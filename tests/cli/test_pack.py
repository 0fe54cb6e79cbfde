"""Pack and verify: requests made of options, results in every form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkserve.model.event import Observer
from sparkserve.ops import pack as pack_ops
from sparkserve.ops import verify as verify_ops
from sparkserve.ops.doors import Doors
from sparkserve.ops.shards import LocalRank, ShardsRequest
from sparkserve.ops.target import Target
from tests.cli.conftest import Outcome, Run
from tests.report import packs


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests that reached the use cases; each answers for four nodes."""
    requests: list[Any] = []

    def pack(request: ShardsRequest, doors: Doors, observer: Observer) -> Any:
        requests.append(request)
        if request.dry_run:
            return packs.dry_run()
        for event in packs.events()[:4]:
            observer.event(event)
        return packs.result()

    def verify(request: ShardsRequest, doors: Doors, observer: Observer, *, strict: bool) -> Any:
        requests.append(request)
        return packs.verified(strict=strict)

    monkeypatch.setattr(pack_ops, "run", pack)
    monkeypatch.setattr(verify_ops, "run", verify)
    return requests


class TestPack:
    """``sparkserve pack``."""

    def test_options_become_the_request(self, run: Run, asked: list[Any]) -> None:
        run(
            *("pack", "-p", "x", "-c", "lab", "--layers", "1, 14", "--layout", "strided"),
            *("--source", "http://nas/v41", "--verify", "full", "--reserve-gib", "0.5"),
            *("--chunk-mib", "128", "--replace", "--tp", "4", "--token-file", "t"),
        )
        (request,) = asked
        assert request.target == Target(profile="x", cluster="lab", values={"parallel": {"tp": 4}})
        assert (request.layers, request.layout, request.source) == (
            (1, 14), "strided", "http://nas/v41",
        )  # fmt: skip
        assert (request.verify, request.reserve_gib, request.chunk_mib) == ("full", 0.5, 128)
        assert (request.replace, request.token_file, request.local) == (True, "t", None)

    def test_one_rank_here(self, run: Run, asked: list[Any], tmp_path: Path) -> None:
        run("pack", "--model", str(tmp_path), "--out", "/x", "--tp", "3", "--rank", "2")
        run("pack", "--model", "https://h/m", "--out", "/x", "--tp", "3", "--rank", "2")
        assert asked[0].local == LocalRank(out="/x", tp=3, rank=2, model=str(tmp_path))
        assert asked[1].local.model == "https://h/m"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--model", "m", "--out", "o"], "also needs --rank, --tp"),
            (["--rank", "1"], "also needs --model, --out, --tp"),
            (
                ["--model", "m", "--out", "o", "--tp", "2", "--rank", "1", "-p", "x"],
                "--out and --profile contradict each other",
            ),
            (["--layers", "one"], "--layers 'one', expected numbers such as 1,14"),
        ],
    )
    def test_contradictions_are_refused_before_anything(
        self, run: Run, asked: list[Any], arguments: list[str], words: str
    ) -> None:
        outcome = run("pack", *arguments, columns=200)
        assert outcome.code == 2
        assert words in outcome.err
        assert asked == []

    def test_result(self, run: Run, asked: list[Any]) -> None:
        assert run("pack").golden("pack").code == 0

    def test_dry_run_with_a_node_that_cannot_pack(self, run: Run, asked: list[Any]) -> None:
        assert run("pack", "-n").code == 4
        assert asked[0].dry_run

    def test_programs_get_events_and_the_result(self, run: Run, asked: list[Any]) -> None:
        records = run("pack", "--json").records
        assert [record["kind"] for record in records] == [
            "notice", "phase", "phase", "phase", "result",
        ]  # fmt: skip
        assert [rank["state"] for rank in records[-1]["data"]["ranks"]] == ["done"] * 4

    def test_quiet_is_the_manifests(self, run: Run, asked: list[Any]) -> None:
        outcome = run("pack", "-q")
        assert outcome.err == ""
        assert [line.rpartition("/")[2] for line in outcome.out.splitlines()] == [
            f"manifest-r{rank}of4.json" for rank in range(4)
        ]

    def test_interrupted_ends_with_130_and_says_how_to_go_on(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stopped = packs.result(
            packs.outcome(0), packs.outcome(1, state="interrupted", layers=()), interrupted=True
        )
        monkeypatch.setattr(pack_ops, "run", lambda *_: stopped)
        outcome = run("pack")
        assert outcome.code == 130
        assert "the same command goes on from what was written" in outcome.out


class TestVerify:
    """``sparkserve verify``."""

    def test_bare_verify_says_what_it_can(self, run: Run, asked: list[Any]) -> None:
        outcome = run("verify")
        assert outcome.code == 2
        assert "this version verifies packed Engram shards" in outcome.err
        assert "sparkserve verify --engram" in outcome.err
        assert asked == []

    def test_table(self, run: Run, asked: list[Any]) -> None:
        assert run("verify", "--engram").golden("verify").code == 1
        assert asked[0].verify == "sample"

    def test_one_rank_here_needs_no_checkpoint(self, run: Run, asked: list[Any]) -> None:
        run("verify", "--engram", "--full", "--out", "/x", "--tp", "3", "--rank", "2")
        assert asked[0].local == LocalRank(out="/x", tp=3, rank=2)
        assert asked[0].verify == "full"

    def test_full_and_sample_contradict_each_other(self, run: Run, asked: list[Any]) -> None:
        assert _refused(run("verify", "--engram", "--full", "--sample")) == 2

    def test_programs_get_the_verdicts(self, run: Run, asked: list[Any]) -> None:
        data = run("verify", "--engram", "--json", "--strict").records[-1]["data"]
        assert (data["ok"], data["strict"]) == (False, True)
        assert [shard["outcome"] for shard in data["shards"]] == [
            "pass", "pass", "unknown", "unknown", "fail", "unknown",
        ]  # fmt: skip

    def test_quiet_is_a_word_per_shard(self, run: Run, asked: list[Any]) -> None:
        assert run("verify", "--engram", "-q").out.splitlines()[3:] == [
            "1 14 unknown", "2 14 fail", "3 - unknown",
        ]  # fmt: skip


def _refused(outcome: Outcome) -> int:
    assert "contradict" in outcome.err
    return outcome.code
