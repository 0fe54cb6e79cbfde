"""The set-up behind `make`: what it installs, when it does nothing, and what it says."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
CONSTRAINTS = sorted((REPOSITORY / "constraints").glob("*.txt"))


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """tools/setup.py, working on a repository of the test's own."""
    spec = importlib.util.spec_from_file_location("make_setup", REPOSITORY / "tools" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "WHEELS", tmp_path / ".cache" / "wheels")
    (tmp_path / ".venv").mkdir()
    return module


def pins(file):
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return [tuple(line.split("==")) for line in lines if line]


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("file", CONSTRAINTS, ids=lambda file: file.name)
def test_every_package_is_pinned_and_no_host_is_named(file):
    assert pins(file)
    for pin in pins(file):
        assert len(pin) == 2, pin
    assert "://" not in file.read_text()
    assert not re.search(r"^\s*-", file.read_text(), re.MULTILINE)


def test_two_files_never_pin_one_package_differently():
    seen = {}
    for file in CONSTRAINTS:
        # What these name never stands beside the rest in one environment.
        if file.name not in ("wheels.txt", "older-engine.txt"):
            for name, version in pins(file):
                assert seen.setdefault(normal(name), version) == version, name


def test_this_environment_is_the_pinned_one():
    for name, version in pins(REPOSITORY / "constraints" / "dev.txt"):
        assert importlib.metadata.version(name) == version, name


class TestOnce:
    @pytest.fixture
    def source(self, setup, tmp_path):
        path = tmp_path / "inputs.txt"
        path.write_text("one")
        return path

    def test_a_step_runs_again_only_when_its_inputs_change(self, setup, source):
        ran = []
        for text in ("one", "one", "two", "two", "one"):
            source.write_text(text)
            setup.once("a step", [source], lambda: ran.append(source.read_text()))
        assert ran == ["one", "two", "one"]

    def test_a_step_that_failed_runs_again(self, setup, source):
        def fail():
            raise setup.SetupError("no network")

        with pytest.raises(setup.SetupError):
            setup.once("a step", [source], fail)
        ran = []
        setup.once("a step", [source], lambda: ran.append(1))
        assert ran == [1]

    def test_steps_do_not_stand_in_for_each_other(self, setup, source):
        ran = []
        setup.once("one step", [source], lambda: ran.append(1))
        setup.once("another", [source], lambda: ran.append(2))
        assert ran == [1, 2]


class TestDebianPackages:
    def test_without_root_the_command_is_named(self, setup, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(setup.SetupError) as caught:
            setup.install_debian({"rsync", "ethtool"}, "the simulated cluster")
        assert "sudo apt-get install ethtool rsync" in str(caught.value)

    def test_a_testbed_that_cannot_be_had_is_a_warning(self, setup, monkeypatch, capsys):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setattr(setup, "TESTBED_TOOLS", {"no-such-tool-anywhere": "some-package"})
        assert setup.main(["testbed"]) == 0
        assert "sudo apt-get install some-package" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("step", "file", "words"),
    [
        ("weights", "demo-weights.txt", "falls back to a tiny random model"),
        ("tokenizer", "tokenizer.txt", "the tests that need it are skipped"),
    ],
)
def test_what_only_some_tests_need_is_a_warning_where_it_cannot_be_had(
    setup, monkeypatch, capsys, tmp_path, step, file, words
):
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / file).write_text("x==1\n")
    monkeypatch.setattr(setup, "CONSTRAINTS", tmp_path / "constraints")

    def offline(*arguments):
        raise setup.SetupError("exit 1: pip install")

    monkeypatch.setattr(setup, "pip", offline)
    assert setup.main([step]) == 0
    assert words in capsys.readouterr().out


def test_a_wheel_is_unpacked_to_its_sources_once(setup, monkeypatch, tmp_path):
    downloads = []

    def download(verb, *arguments):
        downloads.append(arguments[-1])
        with zipfile.ZipFile(Path(arguments[2]) / "thing-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("thing/__init__.py", "x = 1\n")
            wheel.writestr("thing/lib.so", "binary")
            wheel.writestr("thing-1.0.dist-info/METADATA", "Name: thing\n")

    monkeypatch.setattr(setup, "pip_run", download)
    for _ in range(2):
        setup.unpack_wheel("thing==1.0")
    folder = tmp_path / ".cache" / "wheels" / "thing-1.0"
    assert downloads == ["thing==1.0"]
    assert (folder / "thing" / "__init__.py").read_text() == "x = 1\n"
    assert not (folder / "thing" / "lib.so").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["thing-1.0"]


@pytest.mark.parametrize("steps", [[], ["engin"]])
def test_an_unknown_step_is_answered_with_the_known_ones(setup, steps, capsys):
    assert setup.main(steps) == 2
    assert "{dev|engine|weights|tokenizer|testbed|cross}" in capsys.readouterr().err


class TestPythonFinder:
    def find(self, *words, **variables):
        command = ["sh", str(REPOSITORY / "tools" / "python.sh"), *words]
        env = {"PATH": os.environ["PATH"], **variables}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def test_the_named_python_is_taken_with_all_its_arguments(self):
        result = self.find(
            "-c", "import sys; print(sys.argv[1:])", "a b", "", PYTHON=sys.executable
        )
        assert result.stdout == "['a b', '']\n"

    def test_a_python_that_is_too_old_or_broken_is_passed_over(self, tmp_path):
        for name, text in (("python3", "exit 1"), ("python3.11", f'exec {sys.executable} "$@"')):
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        result = self.find("-c", "print('found')", PATH=f"{tmp_path}:/usr/bin:/bin")
        assert result.stdout == "found\n"

    def test_without_any_the_way_to_one_is_named(self):
        result = self.find("-c", "pass", PYTHON="/bin/false")
        assert result.returncode == 2
        assert "no Python of 3.11 to 3.14 found (tried: /bin/false)" in result.stderr
        assert "hint: apt-get install python3" in result.stderr
