"""What the benchmark reads: a file of random rows, and ids as a server would ask for them."""

from __future__ import annotations

import itertools
import os
import random
from array import array
from pathlib import Path

from sparkserve_native.row_store import RowFile, Segment

HEADER_BYTES = 4096
WEIGHT_BYTES, SCALE_BYTES = 256, 8
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES
_CHUNK_BYTES = 64 << 20


def row_file(path: Path, size_bytes: int) -> RowFile:
    """A file of about this size, made where it is missing or of another size.

    Raises:
        OSError: no room, or no permission.
    """
    rows = (size_bytes - HEADER_BYTES) // ROW_BYTES
    wanted = HEADER_BYTES + rows * ROW_BYTES
    if not path.exists() or path.stat().st_size != wanted:
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            for begin in range(0, wanted, _CHUNK_BYTES):
                file.write(os.urandom(min(_CHUNK_BYTES, wanted - begin)))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        part.rename(path)
    return RowFile(
        path=str(path),
        data_offset_bytes=HEADER_BYTES,
        rows=rows,
        weight_bytes=WEIGHT_BYTES,
        scale_bytes=SCALE_BYTES,
        total_ids=rows,
        segments=(Segment(0, rows, 0),),
    )


def uniform_ids(rows: int, count: int, *, seed: int) -> array[int]:
    """Ids drawn evenly from the whole table."""
    rng = random.Random(seed)
    return array("q", (int(rng.random() * rows) for _ in range(count)))


def shuffled(ids: array[int], *, seed: int) -> array[int]:
    """The same ids in another order."""
    order = list(ids)
    random.Random(seed).shuffle(order)
    return array("q", order)


def with_duplicates(ids: array[int], batch: int, *, share: float, seed: int) -> array[int]:
    """A share of each batch replaced by other ids of the same batch."""
    rng = random.Random(seed)
    out = array("q", ids)
    for begin in range(0, len(ids) - batch + 1, batch):
        places = list(range(begin, begin + batch))
        rng.shuffle(places)
        copies = int(share * batch)
        for place in places[:copies]:
            out[place] = out[rng.choice(places[copies:])]
    return out


def serving_trace(rows: int, batches: int, batch: int, *, seed: int) -> array[int]:
    """Batches as they come while serving.

    Three in ten ids repeat one of the last eight batches or this one; the others follow Zipf's
    law with exponent 1 over the whole table, scattered over the file.
    """
    rng = random.Random(seed)
    out = array("q")
    recent = 8 * batch
    # The rank of a draw u under p(k) ~ 1/k is about rows ** u; a large odd factor scatters ranks.
    scatter = 2_654_435_761
    for _ in itertools.repeat(None, batches * batch):
        if out and rng.random() < 0.3:
            out.append(out[-1 - int(rng.random() * min(len(out), recent))])
        else:
            out.append(int(rows ** rng.random()) * scatter % rows)
    return out
