"""What a compiled kernel holds: registers, memory and instructions, read from its cubin."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.M)


class ToolError(RuntimeError):
    """A CUDA binary tool that Triton brings along failed."""


@dataclass(frozen=True)
class CubinFacts:
    """Resources and instruction mix of one kernel."""

    registers: int
    """Per thread."""
    stack_bytes: int
    spill_instructions: int
    """Loads and stores of local memory (LDL, STL)."""
    block_scaled_mmas: int
    """QMMA.SF and OMMA.SF: matrix instructions that apply block scales themselves."""
    other_mmas: int
    """HMMA, plain QMMA, IMMA and Hopper's warp-group forms."""
    async_loads_16_bytes: int
    """LDGSTS of 128 bits: global to shared memory past the registers."""
    bulk_prefetches: int
    """UBLKPF: bulk prefetch to L2."""
    instructions: int


def read_cubin(cubin: bytes) -> CubinFacts:
    """Facts of a cubin with one kernel; functions that it calls count as part of it.

    Raises:
        ToolError: cuobjdump refuses it or prints no resource usage.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _cuobjdump("--dump-resource-usage", str(path))
        listing = _cuobjdump("--dump-sass", str(path))
    registers, stack_bytes = read_usage(usage)
    return read_listing(listing, registers=registers, stack_bytes=stack_bytes)


def read_usage(usage: str) -> tuple[int, int]:
    """Most registers and most stack bytes of a cubin's functions.

    usage: what ``cuobjdump --dump-resource-usage`` prints.

    Raises:
        ToolError: no function in it.
    """
    found = _RESOURCES.findall(usage)
    if not found:
        raise ToolError(f"cuobjdump printed no resource usage: {usage[-300:]!r}")
    return max(int(one) for one, _ in found), max(int(stack) for _, stack in found)


def read_listing(listing: str, *, registers: int, stack_bytes: int) -> CubinFacts:
    """Count the instructions of a SASS listing as ``cuobjdump --dump-sass`` prints it."""
    mix = Counter(_INSTRUCTION.findall(listing))

    def count(pattern: str) -> int:
        matcher = re.compile(pattern)
        return sum(number for name, number in mix.items() if matcher.match(name))

    scaled = count(r"[QO]MMA\.SF")
    return CubinFacts(
        registers=registers,
        stack_bytes=stack_bytes,
        spill_instructions=count(r"(LDL|STL)\b"),
        block_scaled_mmas=scaled,
        other_mmas=count(r"(HMMA|QMMA|IMMA|OMMA|HGMMA|QGMMA|IGMMA|DMMA)\b") - scaled,
        async_loads_16_bytes=count(r"LDGSTS\.E\S*\.128|LDGSTS\.128"),
        bulk_prefetches=count(r"UBLKPF"),
        instructions=sum(mix.values()),
    )


def _cuobjdump(option: str, path: str) -> str:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    command = [str(tools / "cuobjdump"), option, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-300:]}")
    return done.stdout
