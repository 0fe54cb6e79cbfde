"""The working folder of a run on the GPU machine, and what has to lie in it before a server runs.

Standard library only: this runs before the carried packages are unpacked.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

__all__ = [
    "REPOSITORY",
    "Place",
    "TimeoutExpired",
    "build_native",
    "link_ours",
    "pack_caches",
    "pack_logs",
    "python",
    "unpack",
]

REPOSITORY = Path(__file__).resolve().parents[2]
_OURS = ("sparkserve", "tests")
_ENTRY_POINTS = """[sglang.srt.plugins]
sparkserve = sparkserve.adapters.plugin:register
sparkserve_gpu_obstacles = tests.gpu.obstacles:register
"""
_METADATA = "Metadata-Version: 2.1\nName: sparkserve\nVersion: 0.1.0\n"


@dataclass(frozen=True)
class Place:
    """Where everything of one run lies."""

    work: Path
    out: Path
    """What is kept of the run."""

    @property
    def site(self) -> Path:
        """The one folder on PYTHONPATH: carried packages, ours as links, the native package."""
        return self.work / "site"

    @property
    def caches(self) -> Path:
        """Everything that was compiled on the way."""
        return self.work / "caches"

    @property
    def models(self) -> Path:
        return self.work / "models"

    @property
    def runs(self) -> Path:
        """One folder per server: engine.json, log, reports, statistics."""
        return self.work / "runs"

    def environment(self) -> dict[str, str]:
        """The environment of every process of a run."""
        return os.environ | {
            "PYTHONPATH": str(self.site),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "SGLANG_CACHE_DIR": str(self.caches),
            "SGLANG_JIT_CACHE_DIR": str(self.caches / "jit"),
            "FLASHINFER_WORKSPACE_BASE": str(self.caches),
            "TRITON_CACHE_DIR": str(self.caches / "triton"),
            # SGLang 0.5.21 wants sglang-kernel 0.4.7, which no wheel for this torch has.
            "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
            # The Rust core of the radix tree is built for another torch.
            "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
        }


def unpack(place: Place, kit: Path, cache: Path) -> None:
    """Unpack the carried packages, and the caches of an earlier run where there are some.

    Without an archive of packages this Python must have SGLang of its own.

    Raises:
        FileNotFoundError: neither is there.
        subprocess.CalledProcessError: an archive is broken.
    """
    for folder in (place.site, place.caches, place.models, place.runs, place.out):
        folder.mkdir(parents=True, exist_ok=True)
    if not kit.is_file() and importlib.util.find_spec("sglang") is None:
        raise FileNotFoundError(f"{kit}: no such file and no SGLang here (hint: make gpu-kit)")
    jobs = [] if (place.site / "sglang").is_dir() else [(kit, place.site)]
    jobs = [job for job in (*jobs, (cache, place.caches)) if job[0].is_file()]
    for archive, folder in jobs:
        command: list[str | Path] = ["tar", "-C", folder, "-xJf", archive, "--no-same-owner"]
        subprocess.run(command, check=True, timeout=120)


def link_ours(place: Place) -> None:
    """Put this checkout's packages and their entry points beside the carried ones.

    The checkout itself stays off the path: its folders ``kernels`` and ``profiles`` would pass
    for packages of that name.
    """
    for name in _OURS:
        link = place.site / name
        link.unlink(missing_ok=True)
        link.symlink_to(REPOSITORY / name)
    info = place.site / "sparkserve-0.1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(_METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")


def build_native(place: Place) -> float:
    """Compile the native library and lay the package with it on the path.

    Returns:
        Seconds it took.

    Raises:
        subprocess.CalledProcessError: it does not compile; the compiler's words are in the error.
    """
    began = time.monotonic()
    build = place.work / "native-build"
    steps: tuple[list[str | Path], ...] = (
        ["cmake", "-S", REPOSITORY / "native", "-B", build, "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", build, "--parallel", "8", "--target", "sparkserve_native"],
    )
    for step in steps:
        done = subprocess.run(
            step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150
        )
        if done.returncode != 0:
            raise RuntimeError(f"{step[1]}: {done.stdout[-3000:]}")
    package = place.site / "sparkserve_native"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(
        REPOSITORY / "native" / "sparkserve_native",
        package,
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    (library,) = build.rglob("libsparkserve_native.so")
    shutil.copy2(library, package)
    return time.monotonic() - began


def python(place: Place, *words: str | Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a module or script of ours in a process of its own."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=place.environment(),
        cwd=place.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def pack_caches(place: Place) -> Path:
    """Everything that was compiled, as one archive for the next run."""
    archive = place.out / "cache.tar.xz"
    part = place.work / "cache.part"
    with part.open("wb") as out:
        tar = subprocess.Popen(
            ["tar", "-C", place.caches, "--exclude=*.lock", "-cf", "-", "."],
            stdout=subprocess.PIPE,
        )
        subprocess.run(["xz", "-T0", "-6"], stdin=tar.stdout, stdout=out, check=True, timeout=60)
        tar.wait(timeout=30)
    shutil.move(part, archive)
    return archive


def pack_logs(place: Place) -> Path:
    """The folders of all servers, without their rows."""
    archive = place.out / "logs.tar.xz"
    command: list[str | Path] = [
        "tar",
        "-C",
        place.work,
        "--exclude=*.bin",
        "-cJf",
        archive,
        "runs",
    ]
    subprocess.run(command, check=True, timeout=60)
    return archive
