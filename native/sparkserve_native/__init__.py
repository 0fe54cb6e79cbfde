"""sparkserve's native code, as typed Python; it knows nothing of sparkserve itself."""

from __future__ import annotations

from sparkserve_native.direct_io import DioAlignment, dio_alignment

__all__ = ["DioAlignment", "dio_alignment"]
