"""Profiles, environments and rendered runs as people paste them."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkserve.facts import environment, model_config, rendered, wanted
from sparkserve.facts.environment import Environment
from sparkserve.facts.model_config import ModelConfig
from sparkserve.facts.reader import Fact, understand
from sparkserve.facts.rendered import (
    ArgvUnderTest,
    Pins,
    ProfileDigests,
    ProfileValue,
    RenderedArgv,
    RenderedMounts,
    Request,
    RequestBody,
    TransferPlan,
)
from sparkserve.facts.settings_text import flat_settings, typed
from sparkserve.facts.wanted import Wanted, from_keys, setting, wanted_of, wanted_text, whole_number
from sparkserve.model.facts import Unobserved
from sparkserve.model.profile import Profile
from sparkserve.model.reading import Format, Reading
from tests import scenes

READERS = (
    *environment.READERS, *rendered.READERS, *wanted.READERS, *model_config.READERS,
)  # fmt: skip


def read(
    text: str, *, what: str | None = None, command: str | None = None, path: str | None = None,
    format: Format = "text", rc: int | None = None,
) -> list[Fact]:  # fmt: skip
    """Facts of one text, which must be taken and be of use."""
    reading = Reading(text=text, what=what, command=command, path=path, format=format, rc=rc)
    understood = understand([reading], READERS)
    assert understood.unread == ()
    facts = [one.fact for one in understood.observations]
    assert not any(isinstance(fact, Unobserved) for fact in facts), facts
    return [fact for fact in facts if not isinstance(fact, Unobserved)]


def profile(text: str, format: Format = "yaml") -> Wanted:
    (fact,) = read(text, what="profile", format=format)
    assert isinstance(fact, Wanted)
    return fact


SAME = {
    "yaml": "parallel:\n  tp: 4\ncontext: {length_tokens: 1048576}\nIB_HCA: rocep1s0f0\n",
    "json": '{"TP_SIZE": 4, "context_length": 1048576, "ib_hca": ["rocep1s0f0"]}',
    "toml": 'ib_hca = "rocep1s0f0"\n[parallel]\ntp = 4\n[context]\nlength_tokens = 1_048_576\n',
    "env": "TP_SIZE=4\nCONTEXT_LENGTH=1048576\nexport NCCL_IB_HCA=rocep1s0f0\n",
    "flags": "command: >-\n  --tensor-parallel-size 4 --max-model-len=1Mi\nhca: rocep1s0f0\n",
    "lines": "tensor-parallel: 4\nmax-model-len: 1_048_576\nib-hca: 'rocep1s0f0'  \n",
}


@pytest.mark.parametrize("form", SAME)
def test_one_wish_in_every_form(form: str) -> None:
    found = profile(SAME[form], "text")
    assert (found.tp, found.context_tokens, found.hca) == (4, 1_048_576, "rocep1s0f0")


def test_formats_that_are_wrong_do_not_hide_the_settings() -> None:
    for claimed in ("json", "yaml", "env", "text", "log"):
        assert profile("nccl_ib_gid_index: 3\nib_hca: a\n", claimed).gid_index == 3  # type: ignore[arg-type]


def test_quotes_tell_text_from_truth_and_numbers() -> None:
    flat = flat_settings(
        "a: false\nb: 'false'\nc: 1e3\nd: 0012\ne: 2026-09-14\nf:\ng: ''\n", "yaml"
    )
    assert flat == {
        "a": False, "b": "false", "c": 1000.0, "d": "0012", "e": "2026-09-14", "f": None, "g": "",
    }  # fmt: skip


def test_a_revision_of_digits_stays_as_it_is_written() -> None:
    assert profile("revision: 00012345\n").revision == "00012345"
    assert profile("revision: dba1be0a\ntp: 4\nrank_of: {node3: 2}\n").rank_of == {"node3": 2}


def test_anchors_and_merges_of_compose_files_are_resolved() -> None:
    text = """\
x-common: &common
  shm_size: 64gb
  restart: unless-stopped
services:
  rank0:
    <<: *common
    environment: ["NCCL_IB_GID_INDEX=3", "SGLANG_HOST_IP="]
    command: ["--tp-size", "4", "--attention-backend", "b12x"]
"""
    found = profile(text)
    assert (found.tp, found.gid_index) == (4, 3)
    assert setting(found, "services.rank0.shm_size") == ("services.rank0.shm_size", "64gb")
    assert setting(found, "SGLANG_HOST_IP") == ("SGLANG_HOST_IP", "")
    assert setting(found, "attention_backend") == ("attention-backend", "b12x")


def test_aliases_that_multiply_without_end_are_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    reading = Reading(text=bomb, what="profile", format="yaml")
    (one,) = understand([reading], READERS).observations
    # Too much for YAML; what is left are its lines as text.
    assert isinstance(one.fact, Wanted | Unobserved)


@pytest.mark.parametrize("text", ["", "\n\n", "<html>", "[1, 2]", "# only a comment\n", "\x00\x01"])
def test_texts_without_settings_are_no_profile(text: str) -> None:
    (one,) = understand([Reading(text=text, what="profile")], READERS).observations
    assert isinstance(one.fact, Unobserved)


def test_our_own_profile_comes_back_as_it_went() -> None:
    own = Profile.model_validate(
        tomllib.loads(
            (Path(__file__).parent.parent / "planning/profiles/v41-tp4.toml").read_text()
        ) | {"name": "own"}
    )  # fmt: skip
    for cluster in (scenes.cluster(4), scenes.cluster(1)):
        told = wanted_of(own, cluster)
        for format in ("yaml", "text", "json"):
            assert profile(wanted_text(told), format) == told  # type: ignore[arg-type]
    told = wanted_of(own, scenes.cluster(4))
    assert (told.tp, told.nodes, told.topology) == (4, 4, "switch")
    assert told.rank_of == {"spark1": 0, "spark2": 1, "spark3": 2, "spark4": 3}
    assert (told.kv_tokens, told.chunk_tokens, told.draft_tokens) == (8_000_000, 4096, 5)
    assert told.engram_dir == "v41"
    assert (told.keys or {})["fabric.nccl.NCCL_BUFFSIZE"] == "1048576"


def test_no_draft_is_wanted_where_speculation_is_off() -> None:
    assert wanted_of(scenes.profile(), scenes.cluster()).draft_tokens is None


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (1048576, 1048576), ("1_048_576", 1048576), ("1,048,576", 1048576), ("256k", 256_000),
        ("1Mi", 1_048_576), ("256Ki", 262_144), (4.0, 4), (4.5, None), (True, None), ("", None),
        ("4 nodes", None), (float("inf"), None), (None, None),
    ],
)  # fmt: skip
def test_counts_as_people_write_them(written: object, number: int | None) -> None:
    assert whole_number(written) == number


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_arbitrary_text_is_understood_or_refused_and_nothing_else(text: str) -> None:
    for reader in READERS:
        for one in reader.read(Reading(text=text, what="x")):
            assert isinstance(one.fact, Fact | Unobserved)


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.integers() | st.text() | st.none()))
@settings(max_examples=60, deadline=None)
def test_any_table_becomes_a_wish(table: dict[str, object]) -> None:
    assert from_keys(table).keys is not None
    assert typed("x") == "x"


ENVIRONMENTS = {
    "lines": ("docker inspect -f '{{range .Config.Env}}{{println .}}{{end}}' r", "A=1\nB=\nC=x=y"),
    "json": ("docker inspect --format='{{json .Config.Env}}' r1", '["A=1","B=","C=x=y"]'),
    "grep": ('docker inspect rank1 | grep -E "NCCL|_IP"', '      "A=1",\n   "B=",\n "C=x=y"\n'),
    "exec": ("docker exec rank1 env", "A=1\nB=\nC=x=y"),
    "exec in a shell": ("sudo -n docker exec -i rank1 sh -c 'env | sort'", "A=1\nB=\nC=x=y"),
}  # fmt: skip


@pytest.mark.parametrize("form", ENVIRONMENTS)
def test_environments_of_containers(form: str) -> None:
    command, text = ENVIRONMENTS[form]
    (fact,) = read(text, command=command)
    assert fact == Environment(variables={"A": "1", "B": "", "C": "x=y"}, origin="container")


@pytest.mark.parametrize(
    ("what", "text", "origin"),
    [
        ("container env", "A=1", "container"),
        ("image env", "A=1", "image"),
        ("rendered env", "export A='1'", "rendered"),
        ("rendered -e list", "-e A=1 -e UNSET", "rendered"),
        ("rendered -e list", "--env=A=1 \\\n", "rendered"),
        ("runtime env", '{"A": 1}', "runtime"),
    ],
)
def test_environments_by_what_they_are(what: str, text: str, origin: str) -> None:
    (fact,) = read(text, what=what)
    assert isinstance(fact, Environment)
    assert (fact.variables, fact.origin) == ({"A": "1"}, origin)


def test_images_are_told_from_containers() -> None:
    command = "docker image inspect -f '{{json .Config.Env}}' ghcr.io/x/y@sha256:0"
    (fact,) = read('["PATH=/bin","TP_SOCKET_IFNAME=enP7s7"]', command=command)
    assert isinstance(fact, Environment)
    assert fact.origin == "image"
    assert fact.variables["TP_SOCKET_IFNAME"] == "enP7s7"


def test_a_process_environment_is_read_from_proc() -> None:
    (fact,) = read("A=1\0B=2\0", path="/proc/4121/environ")
    assert isinstance(fact, Environment)
    assert fact.variables == {"A": "1", "B": "2"}


def test_a_container_outweighs_the_image_it_came_from() -> None:
    image = Environment(variables={"A": "image", "B": "2"}, origin="image")
    container = Environment(variables={"A": "run"}, origin="container")
    for both in (image.merged(container), container.merged(image)):
        assert both == Environment(variables={"A": "run", "B": "2"}, origin="container")


def test_a_failed_command_says_nothing_about_an_environment() -> None:
    reading = Reading(text="A=1", command="docker exec r env", rc=1)
    (one,) = understand([reading], READERS).observations
    assert isinstance(one.fact, Unobserved)


def test_argv_of_a_run_gives_its_flags_and_what_it_wants() -> None:
    text = "--model-path /w --tp-size 4 \\\n --nnodes=4 --enable-metrics --node-rank 1"
    facts = read(text, what="rendered argv")
    argv = next(fact for fact in facts if isinstance(fact, RenderedArgv))
    assert argv.flags == (
        "--model-path", "--tp-size", "--nnodes", "--enable-metrics", "--node-rank",
    )  # fmt: skip
    told = next(fact for fact in facts if isinstance(fact, Wanted))
    assert (told.tp, told.nodes, told.model_path) == (4, 4, "/w")


def test_an_argv_under_test_survives_a_shell() -> None:
    words = ["docker", "run", "--", '{"a": "b\'c $x\\n"}']
    (fact,) = read(json.dumps(words), what="argv under test", format="json")
    assert isinstance(fact, ArgvUnderTest)
    assert shlex.split(shlex.join(fact.argv)) == words


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("-v /home/a/.cache:/hf", ("/home/a/.cache", "/hf", None)),
        ("/data:/models:ro", ("/data", "/models", True)),
        ("--volume=/data:/models:rw,z", ("/data", "/models", False)),
        ("--mount type=bind,source=/data,target=/models,readonly", ("/data", "/models", True)),
    ],
)
def test_mounts(text: str, mount: tuple[str, str, bool | None]) -> None:
    (fact,) = read(text, what="rendered mount")
    assert isinstance(fact, RenderedMounts)
    (one,) = fact.mounts
    assert (one.source, one.target, one.read_only) == mount


def test_pins_digests_values_transfers_requests_and_bodies() -> None:
    (pins,) = read("a-b==4.5.2\nc[extra]>=0.6.14,<1  # why\n", what="pins of the profile")
    assert isinstance(pins, Pins)
    assert [(p.name, p.specifier) for p in pins.pins] == [("a-b", "==4.5.2"), ("c", ">=0.6.14,<1")]
    (disk,) = read("2222bbbb  profile.toml\n", what="sha256 of profile on disk")
    (run,) = read('{"sparkserve.profile_sha256":"1111aaaa"}', what="running container label")
    assert isinstance(disk, ProfileDigests)
    assert isinstance(run, ProfileDigests)
    assert disk.merged(run) == ProfileDigests(on_disk="2222bbbb", running="1111aaaa")
    (value,) = read("10.1.12.1\n", what="profile value")
    assert isinstance(value, ProfileValue)
    assert value.value == "10.1.12.1"
    (plan,) = read("transfer: control -> 10.100.0.2\n", what="transfer plan")
    assert isinstance(plan, TransferPlan)
    assert (plan.transfers[0].source, plan.transfers[0].target) == ("control", "10.100.0.2")
    (request,) = read("sparkserve doctor --bandwidth --size 16G", what="request")
    assert isinstance(request, Request)
    assert request.options == {"bandwidth": True, "size": "16G"}
    assert request.size_bytes == 16 << 30
    (body,) = read('POST /v1 HTTP/1.1\n\n{"stream": true}\n', what="request body")
    assert isinstance(body, RequestBody)
    assert body.body == {"stream": True}


def test_a_request_may_be_a_command_or_a_body() -> None:
    text = """curl -s http://h/v1/chat/completions -d '{"thinking": "false"}'"""
    (fact,) = read(text, what="request")
    assert isinstance(fact, RequestBody)
    assert fact.body == {"thinking": "false"}


def test_a_models_sizes_of_nested_configs() -> None:
    text = '{"model_type": "deepseek_v41", "text_config": {"num_attention_heads": 64, "x": true}}'
    (config,) = read(text, what="config.json", format="json")
    assert isinstance(config, ModelConfig)
    assert config.count("n_head", "num_attention_heads") == 64
    assert config.count("x") is None
    (same,) = read(text, path="/data/m/config.json")
    assert same == config
