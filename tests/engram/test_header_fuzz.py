"""A thousand damaged headers of each format: refused with a sentence, never taken for another."""

import os
import random

import pytest

from sparkserve.engram.shard import (
    HEADER_BYTES,
    ShardIdentity,
    read_header,
    read_shard,
    write_shard,
)
from sparkserve.errors import ShardError

MUTATIONS = 1000
BOUNDS = (0, 5, 12, 23, 36)
FIELDS = [*range(0, 56, 8)]
TELLING = (0, 1, 2, 3, 12, 16, 20, 33, 36, 66, 4096, 2**31, 2**32, 2**63, 2**64 - 1)


def shard(layout):
    return ShardIdentity(3, 1, 2, layout, BOUNDS, 33)


@pytest.fixture
def sound(tmp_path, request):
    """(identity, path, bytes) of a sound shard."""
    identity = shard(request.param)
    path = tmp_path / identity.file_name
    header = identity.header
    write_shard(path, header, [bytes([7]) * 33] * header.rows_in_file)
    return identity, path, path.read_bytes()


def damaged(source, data):
    """One to four changes of fields, bits, bytes, indices or length."""
    out = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 4])):
        kind = source.randrange(6)
        at = source.randrange(64 if source.random() < 0.8 else HEADER_BYTES)
        if kind == 0:
            field = source.choice(FIELDS)
            out[field : field + 8] = source.choice(TELLING).to_bytes(8, "little")
        elif kind == 1 and at < len(out):
            out[at] ^= 1 << source.randrange(8)
        elif kind == 2 and at < len(out):
            out[at] = source.randrange(256)
        elif kind == 3:
            # Fields shifted against each other, as an interrupted or foreign writer leaves them.
            field, other = source.sample(FIELDS, k=2)
            out[field : field + 8], out[other : other + 8] = (
                out[other : other + 8],
                out[field : field + 8],
            )
        elif kind == 4:
            out = out[: source.choice([0, 7, 8, 47, 55, 56, 63, 4095, 4096, 4097, len(out) - 1])]
        elif source.random() < 0.5:
            out += bytes(source.choice([1, 33, 4096]))
        else:
            step = source.choice([-1, 1]) * source.choice([1, 5, 33])
            for field in source.sample([16, 24, 32], k=2):
                moved = (int.from_bytes(out[field : field + 8], "little") + step) % 2**64
                out[field : field + 8] = moved.to_bytes(8, "little")
    return bytes(out)


@pytest.mark.parametrize("sound", ["columns", "equal", "strided"], indirect=True)
def test_no_damaged_header_is_taken_for_the_shard_that_is_meant(sound):
    identity, path, data = sound
    source = random.Random(f"header {identity.layout}")
    refused, believed = [], 0
    for _ in range(MUTATIONS):
        changed = damaged(source, data)
        path.write_bytes(changed)
        try:
            header = read_header(path)
        except ShardError as error:
            refused.append((error.path, error.offset_bytes, len(changed)))
            continue
        # A header that contradicts nothing in its file is only believed for what it says.
        believed += 1
        assert header.pack() == changed[:HEADER_BYTES]
        assert header.file_bytes == len(changed)
        if changed != data:
            with pytest.raises(ShardError):
                read_shard(path, identity)
    assert len(refused) > MUTATIONS * 0.8
    assert {name for name, _, _ in refused} == {str(path)}
    assert all(0 <= byte <= max(size, HEADER_BYTES) for _, byte, size in refused)
    # Mutations that cancel out or move a range: without them the last check would be idle.
    assert believed


@pytest.mark.parametrize("sound", ["columns", "equal", "strided"], indirect=True)
def test_a_file_cut_at_any_byte_is_refused(sound):
    identity, path, data = sound
    cuts = {*range(80), *range(4080, len(data)), *range(0, len(data), 97)}
    for size_bytes in sorted(cuts, reverse=True):
        os.truncate(path, size_bytes)
        with pytest.raises(ShardError, match=rf"at byte {size_bytes}: (header|file) ends here"):
            read_shard(path, identity)
