"""Packing and checking without a cluster: what is refused early, and one rank on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkserve.errors import ConfigError, UnreachableError
from sparkserve.model.cluster import Cluster
from sparkserve.ops import pack, verify
from sparkserve.ops.doors import Doors
from sparkserve.ops.shards import LocalRank, ShardsRequest
from sparkserve.ops.target import Target
from sparkserve.transport.connect import connect
from sparkserve.transport.host import GroupResult, Host
from tests.engram.checkpoints import Checkpoint
from tests.engram.packing import expected_file
from tests.ops.told import Heard

HERE = Doors(connect=connect)


def request(
    *, local: LocalRank | None = None, profile: Path | None = None, **more: Any
) -> ShardsRequest:
    target = Target(profile=str(profile) if profile else None)
    base = ShardsRequest(target=target, this_python=sys.executable, local=local)
    return replace(base, **more)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("model"), vocab_size=97, heads=8).write()


def test_one_rank_here_is_planned_packed_kept_and_verified(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    out = tmp_path / "engram"
    local = LocalRank(out=str(out), tp=4, rank=3, model=str(checkpoint.folder))
    ask = request(local=local, layout="strided", reserve_gib=0.0)
    plan = pack.run(replace(ask, dry_run=True), HERE, Heard())
    (rank,) = plan.plans
    names = [f"engram-l{layer}-r3of4.strided.bin" for layer in (1, 14)]
    assert [shard.file for shard in rank.shards or ()] == names
    assert not out.exists(), "a dry run writes nothing"
    heard = Heard()
    packed = pack.run(ask, HERE, heard)
    assert (packed.exit_code, packed.outcomes[0].state) == (0, "done")
    for layer, name in zip((1, 14), names, strict=True):
        assert (out / name).read_bytes() == expected_file(checkpoint, layer, "strided", 3, 4)
    assert {"phase", "state", "step", "report"} <= {event.kind for event in heard.events}
    again = pack.run(ask, HERE, Heard())
    assert {layer.action for layer in again.outcomes[0].layers} == {"kept"}
    checked = verify.run(ask, HERE, Heard(), strict=True)
    assert checked.exit_code == 0
    assert {(v.checksums, v.against_source) for v in checked.verdicts} == {("pass", "sample")}
    alone = replace(ask, local=replace(local, model=None))
    unknown = verify.run(alone, HERE, Heard(), strict=True)
    assert (unknown.exit_code, {v.outcome for v in unknown.verdicts}) == (1, {"unknown"})
    assert "no source to compare with" in unknown.verdicts[0].reason


def test_one_wrong_shard_fails_alone_and_the_others_keep_their_rows_of_the_table(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    local = LocalRank(out=str(tmp_path / "rows"), tp=2, rank=0, model=str(checkpoint.folder))
    ask = request(local=local, layout="columns", reserve_gib=0.0)
    assert pack.run(ask, HERE, Heard()).exit_code == 0
    shard = tmp_path / "rows" / "engram-l1-r0of2.bin"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    checked = verify.run(ask, HERE, Heard(), strict=False)
    assert checked.exit_code == 1
    assert [(v.layer, v.outcome, v.checksums) for v in checked.verdicts] == [
        (1, "fail", "unknown"),
        (14, "pass", "pass"),
    ]
    assert str(shard) in checked.verdicts[0].reason
    assert checked.verdicts[1].reader in ("io_uring", "pread")


def test_rank_that_was_never_packed_fails_its_check(checkpoint: Checkpoint, tmp_path: Path) -> None:
    local = LocalRank(out=str(tmp_path), tp=4, rank=3, model=str(checkpoint.folder))
    checked = verify.run(request(local=local), HERE, Heard(), strict=False)
    assert (checked.exit_code, [v.outcome for v in checked.verdicts]) == (1, ["fail"])
    finding = checked.outcomes[0].finding
    assert finding is not None
    assert finding.fix == (
        f"sparkserve pack --out {tmp_path} --tp 4 --rank 3 --model {checkpoint.folder}"
    )


def test_source_that_is_not_there_is_a_mistake_of_the_command(tmp_path: Path) -> None:
    local = LocalRank(out=str(tmp_path / "rows"), tp=4, rank=3, model=str(tmp_path / "none"))
    heard = Heard()
    result = pack.run(request(local=local), HERE, heard)
    finding = result.outcomes[0].finding
    assert finding is not None
    assert (result.exit_code, finding.code) == (2, "PCK_SOURCE_MISSING")
    assert finding.fix.startswith("--model ")
    phases = [event.message for event in heard.events if event.kind == "phase"]
    assert phases == ["connect", "facts"], "nothing was packed, so nothing says so"


def profile(folder: Path, engram: str = 'directory = "v41"', python: str = "this") -> Path:
    path = folder / "mine.toml"
    path.write_text(
        f'[model]\npath = "m"\nserved_name = "m"\n[engine]\npython = "{python}"\n'
        f"[engram]\n{engram}\n"
    )
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"local": LocalRank(out="/o", tp=4, rank=4, model="/m")}, "expected 0 to 3"),
        ({"local": LocalRank(out="/o", tp=4, rank=0, model="/m"), "token_file": "{token}"},
         "--token-file is for an http"),
        ({"token_file": "/nowhere"}, "--token-file /nowhere: No such file"),
        ({"source": "ftp://nas/v41"}, "--source ftp://nas/v41, expected a directory, or the http"),
        ({"source": "http://"}, "expected a directory, or the http"),
        ({"source": "https://me:word@nas/v41"}, "--source holds a password"),
        ({"local": LocalRank(out="/o", tp=4, rank=0, model="s3://v41")}, "--model s3://v41"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_before_anything_is_touched(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("hf_x")
    given = {k: str(token) if v == "{token}" else v for k, v in changes.items()}
    with pytest.raises(ConfigError, match=words):
        pack.run(request(profile=profile(tmp_path), **given), Doors(connect=never), Heard())


def never(_: Cluster) -> GroupResult[Host]:
    raise AssertionError("no node is touched")


def test_profile_without_an_engram_directory_is_refused(tmp_path: Path) -> None:
    path = profile(tmp_path, engram='layout = "columns"')
    with pytest.raises(ConfigError, match=r"names no engram\.directory"):
        pack.run(request(profile=path), Doors(connect=never), Heard())


def test_node_that_does_not_answer_is_an_outcome_with_its_code(tmp_path: Path) -> None:
    def dark(cluster: Cluster) -> GroupResult[Host]:
        name = cluster.nodes[0].name
        return GroupResult({}, {name: UnreachableError(name, "no answer", hint="ping it")})

    result = pack.run(request(profile=profile(tmp_path)), Doors(connect=dark), Heard())
    (outcome,) = result.outcomes
    assert (result.exit_code, outcome.state) == (3, "failed")
    assert outcome.finding is not None
    assert (outcome.finding.observed, outcome.finding.fix) == ("no answer", "ping it")
