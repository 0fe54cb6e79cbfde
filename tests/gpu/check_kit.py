"""Import from the kit what a server imports on a Hopper GPU, on a machine that has none.

usage: python tests/gpu/check_kit.py SITE          (SITE: the unpacked kit, .gpu/site)

Needs the Python of the GPU machine: 3.12 with the same torch, torchvision and transformers. A
stub of the driver library and a pretended device take the place of the GPU, so that a package or
library that was cut away by mistake is missed here and not there.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

_BINARIES = ("sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/flashmla_ops.abi3.so",
             "sgl_kernel/spatial_ops.abi3.so", "deep_gemm/_C.so")  # fmt: skip
_MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.llama",
    "sglang.srt.models.deepseek_v4",
    "sglang.kernels.ops.layernorm.mhc",
    "sglang.kernels.ops.embeddings.engram_gather",
    "flashinfer",
    "deep_gemm",
    "sgl_kernel.flash_mla",
)


def stub_driver(site: Path, folder: Path) -> None:
    """A libcuda.so.1 with every function that the binaries name."""
    binaries = [str(site / name) for name in _BINARIES]
    found = subprocess.run(
        ["nm", "-D", "--undefined-only", *binaries], capture_output=True, text=True, check=True
    )
    words = {line.split()[-1] for line in found.stdout.splitlines() if " U " in line}
    names = sorted(name for name in words if name.startswith("cu") and name[2:3].isupper())
    source = folder / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
    library = str(folder / "libcuda.so.1")
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library]
    subprocess.run(["cc", *options, str(source)], check=True)


def pretend_hopper() -> None:
    """Let torch answer as on an H200."""
    import torch

    device = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=141 << 30,
        warp_size=32, shared_memory_per_block_optin=232448, L2_cache_size=60 << 20, is_integrated=0,
    )  # fmt: skip
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "current_stream": None,
        "_lazy_init": None,
        "get_device_capability": (9, 0),
        "get_device_properties": device,
        "get_device_name": device.name,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    if "SPARKSERVE_STUBBED" not in os.environ:
        # The loader reads its path once, at the start of a process.
        with tempfile.TemporaryDirectory() as folder:
            stub_driver(site, Path(folder))
            env = os.environ | {
                "SPARKSERVE_STUBBED": "1",
                "LD_LIBRARY_PATH": folder,
                "PYTHONPATH": str(site),
                "SGLANG_CACHE_DIR": folder,
            }
            return subprocess.run([sys.executable, *sys.argv], env=env, check=False).returncode
    pretend_hopper()
    for name in _MODULES:
        importlib.import_module(name)
        print(f"ok {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
