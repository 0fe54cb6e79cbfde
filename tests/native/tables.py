"""A table on disk whose every byte is known, and a real seccomp filter for child processes."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from sparkserve_native import RowFile, Segment

WEIGHT_BYTES, SCALE_BYTES = 256, 8
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES


@dataclass(frozen=True)
class Table:
    """A row file and its bytes as they were written."""

    file: RowFile
    content: bytes

    def row(self, item):
        """The bytes that an id must give."""
        for segment in self.file.segments:
            if segment.first_id <= item < segment.end_id:
                row = segment.first_row + item - segment.first_id
                begin = self.file.data_offset_bytes + row * ROW_BYTES
                return self.content[begin : begin + ROW_BYTES]
        return bytes(ROW_BYTES)

    def rows(self, ids):
        return b"".join(self.row(item) for item in ids)


def make_table(path, *, rows=4099, offset=777, total_ids=None, segments=None, seed=1):
    content = random.Random(seed).randbytes(offset + rows * ROW_BYTES)
    Path(path).write_bytes(content)
    return Table(
        RowFile(
            path=str(path),
            data_offset_bytes=offset,
            rows=rows,
            weight_bytes=WEIGHT_BYTES,
            scale_bytes=SCALE_BYTES,
            total_ids=total_ids or rows,
            segments=segments or (Segment(0, rows, 0),),
        ),
        content,
    )


# Numbers of the io_uring system calls, the same on every architecture.
IO_URING_SETUP, IO_URING_ENTER = 425, 426


def block_system_call(number, answer_errno):
    """Let the kernel answer a system call of this process with an error from now on."""
    load_number, if_equal, answer = 0x20, 0x15, 0x06
    fail, allow = 0x00050000, 0x7FFF0000
    program = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (load_number, 0, 0, 0),
            (if_equal, 0, 1, number),
            (answer, 0, 0, fail | answer_errno),
            (answer, 0, 0, allow),
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    zero = ctypes.c_ulong(0)
    for call in (
        (set_no_new_privileges, ctypes.c_ulong(1), zero, zero, zero),
        (set_seccomp, ctypes.c_ulong(filter_mode), header, zero, zero),
    ):
        if libc.prctl(*call) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
