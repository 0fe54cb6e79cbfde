"""The commands that a user is told to paste: they mean the same profile, nodes and files."""

from __future__ import annotations

import pytest

from sparkserve.ops.shard_commands import named, shard_commands
from sparkserve.ops.shards import LocalRank, ShardsRequest
from sparkserve.ops.target import Target


def request(target: Target | None = None, **changes: object) -> ShardsRequest:
    return ShardsRequest(target=target or Target(), this_python="python3", **changes)  # type: ignore[arg-type]


def test_a_profile_alone_needs_no_more() -> None:
    commands = shard_commands(request(), "my profile.toml")
    assert commands.after_packing == (
        "sparkserve verify --engram --profile 'my profile.toml'",
        "sparkserve launch --profile 'my profile.toml'",
    )


def test_nodes_and_values_that_were_named_are_named_again() -> None:
    target = Target(
        cluster="lab", nodes=2, settings=("model.path=x",), values={"parallel": {"tp": 2}}
    )
    commands = shard_commands(request(target, layout="strided", layers=(1, 14), source="/nfs"), "p")
    where = "--profile p --cluster lab --nodes 2 --tp 2 --set model.path=x"
    which = "--layers 1,14 --layout strided --source /nfs"
    assert commands.pack == f"sparkserve pack {where} {which}"
    assert commands.verify == f"sparkserve verify --engram {where} {which}"
    assert commands.launch == f"sparkserve launch {where} --set engram.layout=strided"


def test_what_a_check_mends_is_of_the_same_profile_and_nodes() -> None:
    target = Target(hosts=("a", "b"), settings=("engram.layout=strided",))
    words = "--profile mine --hosts a,b --set engram.layout=strided"
    assert named(target, "mine") == words
    assert named(Target(profile="./my.toml"), "mine") == "--profile ./my.toml"


@pytest.mark.parametrize(("model", "packing"), [("/v41", "--model /v41"), (None, "--model DIR")])
def test_one_rank_here_is_named_whole(model: str | None, packing: str) -> None:
    commands = shard_commands(request(local=LocalRank("/rows", 4, 2, model)), None)
    rank = "--out /rows --tp 4 --rank 2"
    assert commands.pack == f"sparkserve pack {rank} {packing}"
    assert commands.verify == f"sparkserve verify --engram {rank}" + (f" {packing}" * bool(model))
    assert commands.launch is None


def test_a_nodes_fix_gets_the_whole_command_and_other_words_stay() -> None:
    commands = shard_commands(request(), "p")
    told = "sparkserve pack --replace packs it anew"
    assert commands.named(told) == "sparkserve pack --profile p --replace packs it anew"
    assert commands.named("df -h /rows") == "df -h /rows"
