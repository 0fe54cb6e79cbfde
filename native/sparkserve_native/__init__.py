"""sparkserve's native code, as typed Python; it knows nothing of sparkserve itself.

``RowStore`` reads exact rows of a packed table from NVMe::

    file = RowFile(path="engram-l1-r0of1.bin", data_offset_bytes=4096, rows=4099,
                   weight_bytes=256, scale_bytes=8, total_ids=4099,
                   segments=(Segment(first_id=0, end_id=4099, first_row=0),))
    ids = array("q", [7, 7, 4098])
    rows = bytearray(len(ids) * 264)
    with RowStore(file, StoreOptions(cache_bytes=1 << 30)) as store:
        store.lookup_into(ids, rows)          # or separate buffers for weights and scales
        print(store.engine, store.engine_reason, store.stats().hits)

A lookup gives the file's own bytes or raises ``RowStoreError`` with path and byte offset. Inside
CUDA graphs: ``store.job(...)`` makes a structure at a fixed address, and ``host_callback()`` is the
function to give to ``cudaLaunchHostFunc`` with it. ``dio_alignment`` asks the kernel how direct
I/O on a file must be aligned. The library's C interface is described in its headers
``c_api.h`` and ``row_store.h``; ``python -m sparkserve_native.bench`` measures it.
"""

from __future__ import annotations

from sparkserve_native.direct_io import DioAlignment, dio_alignment
from sparkserve_native.row_store import (
    LookupJob,
    RowFile,
    RowStore,
    RowStoreError,
    Segment,
    StoreOptions,
    StoreStats,
    host_callback,
    host_submit_callback,
    host_wait_callback,
)

__all__ = [
    "DioAlignment",
    "LookupJob",
    "RowFile",
    "RowStore",
    "RowStoreError",
    "Segment",
    "StoreOptions",
    "StoreStats",
    "dio_alignment",
    "host_callback",
    "host_submit_callback",
    "host_wait_callback",
]
