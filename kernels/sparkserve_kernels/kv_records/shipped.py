"""The compiled forms of the KV records."""

from __future__ import annotations

from typing import Any

from sparkserve_kernels.kv_records import kernel
from sparkserve_kernels.kv_records.tiles import WARPS
from sparkserve_kernels.shipped import Shipped
from sparkserve_kernels.target import Target

_GEOMETRY = {
    "page_stride": "i32",
    "page_slots": "i32",
    "total_slots": "i32",
    "data_stride": "i32",
    "scale_base": "i32",
    "scale_stride": "i32",
}
_PACK = {"x_ptr": "*bf16", "slots_ptr": "*i64", "pages_ptr": "*u8", "x_stride": "i32"}
_UNPACK = {"slots_ptr": "*i64", "pages_ptr": "*u8", "key_ptr": "*bf16"}
_PLACE = {"per_row": "i32", "row_stride": "i32"}


def shipped(target: Target) -> tuple[Shipped, ...]:
    """All forms; the same on every target."""
    del target
    fp8: tuple[tuple[str, dict[str, Any]], ...] = (
        ("584", {"GROUP": 64, "HAS_ROPE": True}),
        ("528", {"GROUP": 32, "HAS_ROPE": False}),
    )
    fp4: tuple[tuple[str, dict[str, Any]], ...] = (
        ("432", {"WIDTH": 512, "GROUP": 16, "HAS_ROPE": True, "E8M0": False}),
        ("288", {"WIDTH": 512, "GROUP": 16, "HAS_ROPE": False, "E8M0": False}),
        ("index68", {"WIDTH": 128, "GROUP": 32, "HAS_ROPE": False, "E8M0": True}),
    )
    values = {**_UNPACK, "value_ptr": "*bf16", **_PLACE}
    return (
        *(
            _form(
                f"pack {name}", kernel.pack_fp8_kernel, _PACK, {**constants, "INTERPRETED": False}
            )
            for name, constants in fp8
        ),
        *(
            _form(f"pack {name}", kernel.pack_fp4_kernel, _PACK, {"HAS_ROPE": name == "432"})
            for name, _ in fp4[:2]
        ),
        *(
            _form(f"unpack {name}", kernel.unpack_fp8_kernel, {**_UNPACK, **_PLACE}, constants)
            for name, constants in fp8
        ),
        *(
            _form(f"unpack {name}", kernel.unpack_fp4_kernel, values, constants)
            for name, constants in fp4
        ),
    )


def _form(label: str, function: Any, own: dict[str, str], constants: dict[str, Any]) -> Shipped:
    return Shipped(
        label=label,
        kernel=function,
        signature={**own, **_GEOMETRY},
        constants=constants,
        warps=WARPS,
        stages=3,
        aligned=tuple(
            name for name in ("x_stride", "row_stride", "page_stride") if name in own | _GEOMETRY
        ),
        options={"enable_fp_fusion": False},
    )
