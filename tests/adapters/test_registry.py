from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import Field

import sparkserve.adapters
from sparkserve.adapters import registry
from sparkserve.adapters.meta import AdapterMeta, Target
from sparkserve.errors import ConfigError, SparkserveError
from sparkserve.model.base import Model


class Settings(Model):
    depth: int = Field(default=2, ge=1)


def meta(name, **changes):
    return replace(AdapterMeta(name=name, summary=name, settings=Settings, targets=()), **changes)


@pytest.fixture
def known(monkeypatch):
    """Adapters of the test's own in place of the real ones."""

    def use(*metas):
        by_name = {each.name: each for each in metas}
        monkeypatch.setattr(registry, "names", lambda: tuple(by_name))
        monkeypatch.setattr(registry, "load", by_name.__getitem__)

    return use


def test_every_folder_is_an_adapter_and_every_adapter_a_folder():
    folder = Path(sparkserve.adapters.__file__).parent
    folders = {
        path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert set(registry.names()) == folders
    for name in registry.names():
        loaded = registry.load(name)
        assert loaded.name == name
        assert loaded.targets, f"{name} changes nothing"
        assert (folder / name / "install.py").is_file()
        assert not {*loaded.after, *loaded.needs, *loaded.conflicts} - folders


def test_settings_come_back_whole_and_typed():
    (spec,) = registry.validate({"engram_prefetch": {}, "engram_rows": {}})[1:]
    assert (spec.name, spec.settings) == ("engram_prefetch", {"check": False})


def test_an_adapter_without_the_one_it_needs_is_refused():
    with pytest.raises(ConfigError, match=r"adapters\.engram_prefetch needs adapters\.engram_rows"):
        registry.validate({"engram_prefetch": {}})


def test_an_unknown_adapter_is_answered_with_the_nearest_and_the_list():
    with pytest.raises(ConfigError, match=r"did you mean engram_rows\? \(there are: .*engram_rows"):
        registry.validate({"engram_row": {}})
    with pytest.raises(ConfigError, match=r"^no adapter zzz \(there are: "):
        registry.validate({"zzz": {}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"depth": 0},
            r"adapters\.a\.depth: .*greater than or equal to 1, got 0 \(settings: depth",
        ),
        ({"dept": 1}, r"adapters\.a\.dept: no such setting; did you mean depth\?"),
        ({"depth": "deep"}, r"adapters\.a\.depth: .*valid integer.*got 'deep'"),
    ],
)
def test_bad_settings_are_named_by_profile_key(known, settings, words):
    known(meta("a"))
    with pytest.raises(ConfigError, match=words):
        registry.validate({"a": settings})


def test_order_follows_after_and_then_the_alphabet(known):
    known(meta("a", after=("c",)), meta("b"), meta("c", after=("d", "absent")), meta("d"))
    wanted = {name: {} for name in ("a", "b", "c", "d")}
    assert [spec.name for spec in registry.validate(wanted)] == ["b", "d", "c", "a"]
    assert [spec.name for spec in registry.validate({"c": {}, "a": {}})] == ["c", "a"]
    assert registry.validate({}) == ()


def test_a_cycle_is_named(known):
    known(meta("a", after=("b",)), meta("b", after=("a",)), meta("free"))
    with pytest.raises(ConfigError, match="adapters wait for each other: a, b"):
        registry.validate({"a": {}, "b": {}, "free": {}})


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ({"conflicts": ("b",)}, {}, "they exclude each other"),
        ({}, {"conflicts": ("a",)}, "they exclude each other"),
        ({"provides": ("rows",)}, {"provides": ("rows",)}, "both provide rows"),
        (
            {"targets": (Target("m.f", "replace", {}),)},
            {"targets": (Target("m.f", "replace", {}),)},
            r"both replace m\.f",
        ),
    ],
)
def test_conflicts_are_refused_with_their_reason(known, one, other, reason):
    known(meta("a", **one), meta("b", **other))
    with pytest.raises(ConfigError, match=f"adapters a and b conflict: {reason}"):
        registry.validate({"a": {}, "b": {}})


def test_wrapping_what_another_replaces_is_no_conflict(known):
    known(
        meta("a", targets=(Target("m.f", "replace", {}),)),
        meta("b", targets=(Target("m.f", "wrap", {}),)),
    )
    assert len(registry.validate({"a": {}, "b": {}})) == 2


def test_the_number_of_ranks_is_judged_when_it_is_known(known):
    known(meta("a", world_sizes=(3, 4)))
    assert registry.validate({"a": {}}, world_size=3)
    assert registry.validate({"a": {}})
    with pytest.raises(ConfigError, match=r"adapters\.a is made for 3, 4 ranks, not 2"):
        registry.validate({"a": {}}, world_size=2)


def test_a_folder_without_its_meta_is_a_bug(monkeypatch):
    import sparkserve.adapters.engram_rows as package

    monkeypatch.setattr(package, "META", meta("other"))
    with pytest.raises(SparkserveError, match="adapters/engram_rows: META must be"):
        registry.load("engram_rows")
