"""The C++ tests of the native code: with sanitizers here, and for the Spark's processor by qemu."""

import fcntl
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
SCRIPTS = sysconfig.get_path("scripts")
CROSS, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"


def run(words, **environment):
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "PATH": path, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def build(name, *options):
    """Compile the tests below native/build, where a second run finds what has not changed."""
    folder = NATIVE / "build" / f"tests-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Little optimisation: compiling takes longer than the tests.
        flags = ["-DSPARKSERVE_TESTS=ON", "-DCMAKE_BUILD_TYPE=", "-DCMAKE_CXX_FLAGS=-O1 -g1"]
        run(["cmake", "-S", NATIVE, "-B", folder, "-G", "Ninja", *flags, *options])
        run(["cmake", "--build", folder, "--target", "row_store_test"])
    return folder / "row_store_test"


def ran(output):
    """How many tests ended well; each line of a failed one would have been an exit code."""
    assert "FAILED" not in output, output
    return output.count("\nok ") + output.startswith("ok ")


def test_the_parts_hold_under_the_address_and_undefined_behaviour_sanitizers(tmp_path):
    program = build("address", "-DSPARKSERVE_SANITIZE=address,undefined")
    assert ran(run([program, tmp_path], ASAN_OPTIONS="detect_leaks=1")) > 30


def test_the_parts_hold_under_the_thread_sanitizer(tmp_path):
    program = build("thread", "-DSPARKSERVE_SANITIZE=thread")
    # The sanitizer cannot live with as much address randomisation as new kernels do.
    fixed = ["setarch", os.uname().machine, "-R"] if shutil.which("setarch") else []
    assert ran(run([*fixed, program, tmp_path], TSAN_OPTIONS="halt_on_error=1")) > 30


def test_the_parts_hold_on_the_processor_of_a_spark(tmp_path):
    missing = [tool for tool in (CROSS, QEMU) if not shutil.which(tool)]
    if missing:
        packages = "g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        pytest.skip(f"{' and '.join(missing)} missing: apt-get install {packages}")
    program = build(
        "aarch64",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={CROSS}",
    )
    output = run([QEMU, "-L", "/usr/aarch64-linux-gnu", program, tmp_path])
    # qemu knows no io_uring: this is the path of a Spark whose container blocks it.
    assert ran(output) > 25
