"""Profiles on the command line: list, show with origins, validate."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from sparkserve import clusters, profiles
from tests.cli.conftest import Run


def write(name: str, text: str) -> Path:
    path = profiles.user_dir() / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def only_mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No built-in profiles, so that the list is the test's own."""
    folder = tmp_path / "built-in"
    folder.mkdir()
    for room in ("sparkserve.profiles.sources", "sparkserve.profiles"):
        monkeypatch.setattr(f"{room}.builtin_dir", lambda: folder)
    (folder / "pair.toml").write_text(
        'summary = "two nodes, and a summary that is too long for a narrow terminal by far"\n'
        '[model]\npath = "m"\nserved_name = "m"\n[parallel]\ntp = 2\n'
    )


@pytest.mark.usefixtures("only_mine")
def test_list(run: Run) -> None:
    write("solo", '[model]\npath = "m"\nserved_name = "m"\n')
    write("broken", "[model]\npath = 1\n")
    assert run("profile", "list").golden("profile-list").code == 0
    assert "for a narrow terminal by far" in run("profile", "list", columns=None).out
    assert run("profile", "list", "-q").out == "broken\npair\nsolo\n"
    entries = run("profile", "list", "--json").data["profiles"]
    assert [entry["nodes"] for entry in entries] == [None, 2, 1]
    assert "path = 1" in entries[0]["problem"]


@pytest.mark.usefixtures("only_mine")
def test_no_profiles(run: Run, tmp_path: Path) -> None:
    (tmp_path / "built-in" / "pair.toml").unlink()
    assert run("profile", "list").out == "no profiles\n"


@pytest.mark.usefixtures("only_mine")
def test_own_profile_that_hides_a_built_in_one_is_mentioned(run: Run) -> None:
    write("pair", '[model]\npath = "m"\nserved_name = "m"\n')
    for command in (["list"], ["show", "pair"]):
        assert "is used instead of the built-in one" in run("profile", *command).err


def test_show_can_be_loaded_again(run: Run, own_profile: Path, tmp_path: Path) -> None:
    outcome = run("profile", "show", str(own_profile), "--set", "fabric.nccl.NCCL_DEBUG=INFO")
    outcome.golden("profile-show")
    copy = tmp_path / "copy.toml"
    copy.write_text(outcome.out)
    first = profiles.load(
        str(own_profile), layers=[profiles.layer_from_settings(["fabric.nccl.NCCL_DEBUG=INFO"])]
    )
    again = profiles.load(str(copy)).profile
    assert again == first.profile.model_copy(update={"name": "copy"})


def test_show_names_every_origin(
    run: Run, own_profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKSERVE_LIMITS__COMMAND_S", "60")
    args = ("profile", "show", str(own_profile), "--origin", "--set", "serving.port=9000")
    outcome = run(*args, columns=None).golden("profile-show-origin")
    assert outcome.code == 0


def test_show_as_json(run: Run, own_profile: Path) -> None:
    data = run("profile", "show", str(own_profile), "--json", "-o", "serving.port=9000").data
    assert data["profile"]["serving"]["port"] == 9000
    assert data["origins"]["serving.port"] == "--set"
    assert data["origins"]["serving.host"] == "default"
    assert len(data["digest"]) == 64
    assert run("profile", "show", str(own_profile), "-q").out.strip() != data["digest"]


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(True, id="named"),
        pytest.param(False, id="chosen"),
    ],
)
def test_command_line_beats_environment_beats_cluster(
    run: Run, own_profile: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    cluster = clusters.this_machine().model_copy(
        update={"name": "lab", "profile": str(own_profile)}
    )
    limits = {"command_s": 1.0, "no_progress_s": 1.0, "lost_after_s": 1.0}
    clusters.save(cluster, overrides={"limits": limits})
    clusters.set_default("lab")
    monkeypatch.setenv("SPARKSERVE_LIMITS__COMMAND_S", "2")
    monkeypatch.setenv("SPARKSERVE_LIMITS__NO_PROGRESS_S", "2")
    name = [str(own_profile)] if named else []
    data = run("profile", "show", *name, "--json", "--set", "limits.command_s=3").data
    found = data["profile"]["limits"]
    assert [found[key] for key in limits] == [3.0, 2.0, 1.0]


def test_show_without_a_name_is_what_launch_would_take(run: Run) -> None:
    assert run("profile", "show", "--json").data["name"] == "local-demo"


def test_validate_names_everything_that_is_wrong(run: Run, own_profile: Path) -> None:
    bad = own_profile.with_name("bad.toml")
    bad.write_text(
        'summry = "typo"\n[model]\npath = "m"\nserved_name = "m"\n'
        "[parallel]\ntp = 9\n[serving]\nport = 80\n"
    )
    alien = own_profile.with_name("alien.toml")
    alien.write_text(own_profile.read_text() + "[adapters.engram_row]\n")
    args = [str(own_profile), str(bad), str(alien), "nope"]
    outcome = run("profile", "validate", *args).golden("profile-validate")
    assert outcome.code == 2
    assert run("profile", "validate", *args, "-q").out.splitlines() == [
        f"$TMP/{path.name}" for path in (bad, alien)
    ] + ["nope"]
    document = json.loads(run("profile", "validate", *args, "--json").out)
    assert [entry["valid"] for entry in document["profiles"]] == [True, False, False, False]


def test_valid_profile_ends_with_0(run: Run, own_profile: Path) -> None:
    outcome = run("profile", "validate", str(own_profile))
    assert (outcome.code, outcome.out) == (0, "valid   $TMP/mine.toml\n")


def test_show_is_toml(run: Run) -> None:
    tomllib.loads(run("profile", "show", "local-demo").out)


def test_validate_judges_settings_that_cannot_work_together(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "three.toml"
    path.write_text(
        '[model]\npath = "DeepSeek-V4.1-Flash"\nserved_name = "v41"\n[parallel]\ntp = 3\n'
        '[fabric.nccl]\nNCCL_NET = ""\n'
    )
    outcome = run("profile", "validate", str(path))
    assert outcome.code == 2
    assert "num_attention_heads 64 % 3 = 1" in outcome.out
    assert "(ENG_TP_DIVISIBILITY)" in outcome.out
    assert "fabric.nccl.NCCL_NET=" in outcome.out
    path.write_text(path.read_text().replace("tp = 3", "tp = 4").replace('NCCL_NET = ""', ""))
    assert run("profile", "validate", str(path)).code == 0
