import pytest

from sparkserve.adapters.guard import Engine, judge
from sparkserve.adapters.meta import AdapterMeta, Target
from sparkserve.adapters.source import TargetMissing
from sparkserve.model.base import Model


class Settings(Model):
    depth: int = 2


META = AdapterMeta(
    name="a",
    summary="",
    settings=Settings,
    targets=(
        Target("m.f", "wrap", {"1.0": ("aa", "bb"), "1.1": ("cc",)}),
        Target("m.g", "replace", {"1.0": ("dd",), "1.1": ("dd",)}),
    ),
    world_sizes=(2,),
)


def engine(version="1.0", world_size=2, **digests):
    found = {"m.f": "bb", "m.g": "dd"} | {f"m.{name}": digests[name] for name in digests}

    def digest_of(path):
        if found[path] is None:
            raise TargetMissing(f"{path}: m has no {path[2:]}")
        return found[path]

    return Engine(version, world_size, digest_of)


def test_a_known_engine_is_accepted_with_what_was_found():
    verdict = judge(META, {}, engine())
    assert verdict.ok
    assert verdict.settings == Settings(depth=2)
    assert [(t.target, t.kind, t.source_digest) for t in verdict.targets] == [
        ("m.f", "wrap", "bb"),
        ("m.g", "replace", "dd"),
    ]


@pytest.mark.parametrize(
    ("settings", "seen", "reason"),
    [
        ({}, engine(world_size=3), "made for 2 ranks, this run has 3"),
        ({"depth": "x"}, engine(), "adapters.a.depth: Input should be a valid integer"),
        ({}, engine("1.2"), "m.f: made for sglang 1.0, 1.1, this is sglang 1.2"),
        ({}, engine(g=None), "sglang 1.0 lacks m.g: m has no g"),
        ({}, engine("1.1"), "m.f of sglang 1.1 has source digest bb, expected cc"),
        ({}, engine(f="ee"), "m.f of sglang 1.0 has source digest ee, expected aa or bb"),
    ],
)
def test_each_refusal_has_its_reason(settings, seen, reason):
    verdict = judge(META, settings, seen)
    assert not verdict.ok
    assert verdict.reason.startswith(reason)
    assert verdict.targets == ()
