"""Ask the L2 for pieces of memory.

``cp.async.bulk.prefetch.L2`` returns at once and moves nothing into registers or shared memory, so
one thread asks for 16 KiB with one instruction and a few threads ask for megabytes while other
kernels run. It reads no value and writes none: results cannot change.

The threads of a warp issue it one after the other (about 0.15 us each on an H200), so pieces are
dealt out to warps first and to the threads within one last.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pieces"])
def prefetch_kernel(table, pieces: tl.int32, THREADS: tl.constexpr):
    """Each thread asks for every so-many-th piece; THREADS is the number of threads of a block."""
    thread = tl.arange(0, THREADS)
    warps = tl.num_programs(0) * (THREADS // 32)
    warp = tl.program_id(0) * (THREADS // 32) + thread // 32
    for first in range(0, pieces, warps * 32):
        piece = first + (thread % 32) * warps + warp
        real = piece < pieces
        address = tl.load(table + 2 * piece, mask=real, other=0)
        size = tl.load(table + 2 * piece + 1, mask=real, other=0).to(tl.int32)
        # The output is there because Triton wants one. Size 0 stands for no piece.
        tl.inline_asm_elementwise(
            "{ .reg .pred some; setp.gt.s32 some, $2, 0; "
            "@some cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
            "=r,l,r",
            [address, size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
