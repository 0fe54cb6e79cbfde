"""Build the archive that lets a bare CUDA machine without a network serve SGLang 0.5.21.

usage: python -m tests.gpu.build_kit [FOLDER]        (default: .gpu in the repository)

The machine must bring Python 3.12, torch 2.11 (CUDA 13.0), transformers, nvcc and g++. The
archive holds the rest, cut down to what a Hopper GPU needs, so that it stays small enough to be
carried: 50 MiB. Nothing in it is ours and nothing of it belongs into the repository.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ARCHIVE = "site.tar.xz"
WHEELS = (
    "sglang==0.5.21",
    "flashinfer-python==0.6.18",
    "sgl-deep-gemm==0.1.4.post1",
    "pydantic==2.14.4",
    "pydantic-core==2.50.5",
    "annotated-types==0.8.0",
    "typing-inspection==0.4.5",
    "fastapi==0.165.0",
    "starlette==1.10.0",
    "opentelemetry-api==1.45.2",
    "uvicorn==0.54.0",
    "pyzmq==27.3.0",
    "msgspec==0.23.0",
    "orjson==3.13.0",
    "setproctitle==1.3.8",
    "python-multipart==0.0.34",
    "partial-json-parser==0.2.1.1.post7",
    "interegular==0.3.3",
    "zstandard==0.25.0",
    "llguidance==1.9.1",
    "pybase64==1.5.1",
    "openai==2.6.1",
    "jiter==0.19.0",
    "distro==1.9.0",
    "sniffio==1.3.1",
    "watchfiles==1.3.0",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "referencing==0.37.0",
    "rpds-py==2026.9.1",
    "soundfile==0.13.1",
    "cffi==2.1.1",
    "pycparser==3.12",
    "dill==0.4.1",
    "gguf==0.19.0",
    "loguru==0.7.3",
    "apache-tvm-ffi==0.1.11",
    "openai-harmony==0.0.4",
    "compressed-tensors==0.18.0",
    "xgrammar==0.2.7",
    "ipython==9.18.1",
    "traitlets==5.16.1",
)
KERNEL_WHEEL = "sglang-kernel==0.4.5"
KERNEL_PARTS = (
    "sgl_kernel/*.py",
    "sgl_kernel/sm90/*",
    "sgl_kernel/flashmla_ops*",
    "sgl_kernel/spatial_ops*",
    "sglang_kernel-*.dist-info/*",
)
"""Of 1.2 GB, what Hopper serving loads; the flash-attention binary alone is 1.1 GB."""
NOT_NEEDED = (
    "bin",
    "sglang/multimodal_gen",
    "sglang/test",
    "zstandard/_cffi*",
    "flashinfer/data/cutlass/examples",
    "flashinfer/data/cutlass/test",
)
WITH_DEBUG_SYMBOLS = ("zstandard", "setproctitle", "pybase64")
MUST_HOLD = (
    "./sglang/srt/layers/engram.py",
    "./sglang/srt/models/deepseek_v4.py",
    "./sgl_kernel/sm90/common_ops.abi3.so",
    "./sgl_kernel/flashmla_ops.abi3.so",
    "./deep_gemm/_C.so",
    "./flashinfer/data/csrc/norm.cu",
    # tvm_ffi/core is linked against it, test library or not.
    "./tvm_ffi/lib/libtvm_ffi_testing.so",
    "./pydantic_core/_pydantic_core.cpython-312-x86_64-linux-gnu.so",
)
_GLIBC = (39, 35, 34, 31, 28, 27, 24, 17)
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC), "manylinux2014_x86_64",
             "manylinux1_x86_64", "any")  # fmt: skip


def target_options() -> list[str]:
    """pip's words for CPython 3.12 on x86-64, whatever Python runs this."""
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
    options += ["--implementation", "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none"]
    for platform in PLATFORMS:
        options += ["--platform", platform]
    return options


def pip(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True)


def download(folder: Path, wheels: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pip("download", "-q", *target_options(), "-d", folder, *wheels)


def unpack(wheels: Path, kernel: Path, site: Path) -> None:
    shutil.rmtree(site, ignore_errors=True)
    files = sorted(wheels.glob("*.whl"))
    install = ["install", "-q", "--no-index", "--no-compile", *target_options()]
    pip(*install, "--target", site, *files)
    for wheel in kernel.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if any(fnmatch.fnmatch(name, part) for part in KERNEL_PARTS):
                    archive.extract(name, site)


def trim(site: Path) -> None:
    for pattern in NOT_NEEDED:
        for path in site.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for folder in WITH_DEBUG_SYMBOLS:
        libraries = [str(path) for path in (site / folder).glob("*.so")]
        subprocess.run(["strip", "--strip-debug", *libraries], check=True)
    for path in list(site.rglob("__pycache__")):
        shutil.rmtree(path)


def compress(site: Path, archive: Path) -> None:
    """tar | xz, since Python's own lzma uses one core."""
    part = archive.with_suffix(".part")
    with part.open("wb") as out:
        tar = subprocess.Popen(["tar", "-C", site, "-cf", "-", "."], stdout=subprocess.PIPE)
        subprocess.run(["xz", "-T0", "-7"], stdin=tar.stdout, stdout=out, check=True)
        if tar.wait() != 0:
            raise SystemExit("tar failed")
    part.replace(archive)


def check(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
    missing = [name for name in MUST_HOLD if name not in names]
    if missing:
        raise SystemExit(f"{archive} lacks {missing}")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / ".gpu"
    wheels, kernel, site = folder / "wheels", folder / "kernel", folder / "site"
    download(wheels, WHEELS)
    download(kernel, (KERNEL_WHEEL,))
    unpack(wheels, kernel, site)
    trim(site)
    archive = folder / ARCHIVE
    compress(site, archive)
    check(archive)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB, sha256 {digest}")


if __name__ == "__main__":
    main()
