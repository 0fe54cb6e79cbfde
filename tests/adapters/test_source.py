import importlib
import sys
import textwrap

import pytest

from sparkserve.adapters.source import TargetMissing, digest_of, live, live_digest, tree_digest

MODULE = '''
import functools

if True:
    def chosen():
        return 1

if False:
    def twice():
        return 1
else:
    def twice():
        return 2


def double(function):
    @functools.wraps(function)
    def inner(*args):
        return 2 * function(*args)
    return inner


@double
def decorated(x):
    """Adds nothing."""
    return x
    # a trailing comment of the body


class Outer:
    """A class."""

    table = {"a": 1}

    @classmethod
    def make(cls):
        text = """
less indented
"""
        return text

    @property
    def size(self):
        return 3

    class Inner:
        def method(self):
            return [
                1,
            ]

# a comment after the class


NUMBER = 5
'''
TARGETS = (
    "chosen",
    "double",
    "decorated",
    "Outer",
    "Outer.make",
    "Outer.size",
    "Outer.Inner",
    "Outer.Inner.method",
)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    package = tmp_path / "srcpkg"
    package.mkdir()
    (package / "__init__.py").write_text("def top():\n    return 0\n")
    (package / "module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("srcpkg", "srcpkg.module"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", TARGETS)
def test_the_running_object_and_the_file_give_one_digest(tree, name):
    path = f"srcpkg.module.{name}"
    assert live_digest(path) == tree_digest(tree, path)


def test_all_targets_differ(tree):
    assert len({tree_digest(tree, f"srcpkg.module.{name}") for name in TARGETS}) == len(TARGETS)


def test_a_package_itself_may_define_a_target(tree):
    assert live_digest("srcpkg.top") == tree_digest(tree, "srcpkg.top")


@pytest.mark.parametrize(
    "other",
    [
        "\n\n        def f(x):\n            return x\n",
        "def f(x):   \n    return x   \n    # said afterwards\n",
        "def f(x):\n    return x\n\n\nNEXT = 1\n",
    ],
)
def test_position_and_trailing_white_space_do_not_count(other):
    assert digest_of(other) == digest_of("def f(x):\n    return x\n")


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    return  x\n",
        "def f(x):\n    # why\n    return x\n",
        "def f(x, y=None):\n    return x\n",
        "@cache\ndef f(x):\n    return x\n",
        "async def f(x):\n    return x\n",
    ],
)
def test_everything_inside_counts(other):
    assert digest_of(other) != digest_of("def f(x):\n    return x\n")


@pytest.mark.parametrize(
    "name", ["gone", "Outer.gone", "NUMBER", "Outer.table", "Outer.Inner.method.deeper"]
)
def test_what_is_no_class_or_function_is_missing(tree, name):
    path = f"srcpkg.module.{name}"
    with pytest.raises(TargetMissing, match=name.split(".")[-1]):
        tree_digest(tree, path)
    with pytest.raises(TargetMissing):
        live_digest(path)


def test_a_target_with_two_definitions_is_not_guessed(tree):
    with pytest.raises(TargetMissing, match="defines twice 2 times"):
        tree_digest(tree, "srcpkg.module.twice")


def test_a_missing_module_is_missing_in_both(tree):
    for digest in (live_digest, lambda path: tree_digest(tree, path)):
        with pytest.raises(TargetMissing, match="srcpkg2"):
            digest("srcpkg2.module.f")


def test_a_module_whose_import_fails_is_missing(tree):
    (tree / "srcpkg" / "broken.py").write_text("import no_such_module_anywhere\n")
    with pytest.raises(TargetMissing, match="no_such_module_anywhere"):
        live("srcpkg.broken.f")


def test_a_replaced_object_has_the_digest_of_the_replacement(tree, monkeypatch):
    module = importlib.import_module("srcpkg.module")
    stranger = {}
    source = textwrap.dedent("class Outer:\n    pass\n")
    exec(source, stranger)
    monkeypatch.setattr(module, "Outer", stranger["Outer"])
    # A class made by exec has no source at all: that is a refusal too, never an acceptance.
    with pytest.raises(TargetMissing, match="no source"):
        live_digest("srcpkg.module.Outer")
