"""Open a shard for reading rows by id, through the native row store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkserve.engram.header import HEADER_BYTES, row_bytes_of
from sparkserve.engram.shard import ShardIdentity, read_shard

if TYPE_CHECKING:
    from sparkserve_native.row_store import RowFile, RowStore, StoreOptions


def row_file(path: Path, identity: ShardIdentity) -> RowFile:
    """Describe a shard to the row store, after its name, header and size were found right.

    Raises:
        ShardError: there is no such shard, or it is another one than meant.
    """
    from sparkserve_native.row_store import RowFile, Segment

    header = read_shard(path, identity)
    dim = header.dim
    return RowFile(
        path=str(path),
        data_offset_bytes=HEADER_BYTES,
        rows=header.rows_in_file,
        weight_bytes=dim,
        scale_bytes=row_bytes_of(dim) - dim,
        total_ids=identity.total_rows,
        segments=tuple(Segment(*each) for each in identity.segments),
    )


def open_rows(path: Path, identity: ShardIdentity, options: StoreOptions | None = None) -> RowStore:
    """Open a shard for lookups by row id; the store must be closed.

    Ids that another rank owns give zero rows. Ids outside the table are an error.

    Raises:
        ShardError: there is no such shard, or it is another one than meant.
        RowStoreError: the store cannot open it.
    """
    from sparkserve_native.row_store import RowStore, StoreOptions

    return RowStore(row_file(path, identity), options or StoreOptions())
