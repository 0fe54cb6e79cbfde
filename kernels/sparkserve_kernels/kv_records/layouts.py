"""Where the bytes of a token lie in a page: pure arithmetic (docs/format/numbers.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkserve_kernels.checks import KernelArgumentError

RecordName = Literal["584", "432", "528", "288", "index68"]
Arrangement = Literal["split", "interleaved"]
"""``split``: all data rows of a page, then all scale rows. ``interleaved``: every token's scales
right behind its data."""


@dataclass(frozen=True)
class Record:
    """The bytes of one token."""

    name: RecordName
    data_bytes: int
    """The row that is followed by scales; in "432" everything."""
    scale_bytes: int
    """The row of scales; 0 where they lie inside the data row."""
    width: int
    """Values of a token."""
    page_multiple: int
    """A page is padded to a multiple of this by the engine whose format it is."""
    arrangements: tuple[Arrangement, ...]

    @property
    def record_bytes(self) -> int:
        """Bytes of one token."""
        return self.data_bytes + self.scale_bytes


RECORDS: dict[RecordName, Record] = {
    record.name: record
    for record in (
        Record("584", 576, 8, 512, 576, ("split",)),
        Record("432", 432, 0, 512, 1, ("interleaved",)),
        Record("528", 512, 16, 512, 512, ("split", "interleaved")),
        Record("288", 256, 32, 512, 256, ("split", "interleaved")),
        Record("index68", 64, 4, 128, 1, ("split",)),
    )
}
"""584: DeepSeek-V4 fp8. 432: NVFP4 with a bf16 RoPE part. 528: V41. 288: V41_FP4 (compressed cache
only). index68: index keys."""


@dataclass(frozen=True)
class PageLayout:
    """One record in pages of a fixed number of slots."""

    record: Record
    slots: int
    arrangement: Arrangement

    @property
    def page_bytes(self) -> int:
        """What a page holds, without padding."""
        return self.slots * self.record.record_bytes

    @property
    def padded_page_bytes(self) -> int:
        """Distance of pages in the engine whose format it is; interleaved pages have no padding."""
        if self.arrangement == "interleaved":
            return self.page_bytes
        return -(-self.page_bytes // self.record.page_multiple) * self.record.page_multiple

    @property
    def data_stride(self) -> int:
        """Bytes from one token's data to the next one's."""
        record = self.record
        return record.data_bytes if self.arrangement == "split" else record.record_bytes

    @property
    def scale_base(self) -> int:
        """Byte of the first token's scales in a page."""
        record = self.record
        return self.slots * record.data_bytes if self.arrangement == "split" else record.data_bytes

    @property
    def scale_stride(self) -> int:
        """Bytes from one token's scales to the next one's."""
        record = self.record
        return record.scale_bytes if self.arrangement == "split" else record.record_bytes

    def data_offset(self, slot: int) -> int:
        """Byte of a slot's data in its page."""
        return slot * self.data_stride

    def scale_offset(self, slot: int) -> int:
        """Byte of a slot's scales in its page."""
        return self.scale_base + slot * self.scale_stride


def page_layout(name: RecordName, slots: int, arrangement: Arrangement | None = None) -> PageLayout:
    """The layout of a record in pages of that many slots.

    arrangement: only "528" and "288" know both; without it the first the record knows.

    Raises:
        KernelArgumentError: an unknown record, no slots, or an arrangement the record lacks.
    """
    record = RECORDS.get(name)
    if record is None:
        raise KernelArgumentError(f"record {name!r}, expected one of {', '.join(RECORDS)}")
    chosen = arrangement or record.arrangements[0]
    if chosen not in record.arrangements:
        known = " or ".join(record.arrangements)
        raise KernelArgumentError(f"record {name}: arrangement {chosen!r}, expected {known}")
    if slots < 1:
        raise KernelArgumentError(f"slots = {slots}, expected at least 1")
    return PageLayout(record, slots, chosen)


def require_pair(main: PageLayout, extra: PageLayout) -> None:
    """Refuse a main and a compressed cache that no reader takes together.

    A pair is one record in one arrangement twice, or "528" with "288" in one arrangement; "288"
    is for compressed caches alone. Page sizes may differ.

    Raises:
        KernelArgumentError: naming both.
    """
    names = (main.record.name, extra.record.name)
    fits = names in (("528", "288"), ("584", "584"), ("432", "432"), ("528", "528"))
    if not fits or main.arrangement != extra.arrangement:
        raise KernelArgumentError(
            f"main cache {names[0]} {main.arrangement} with extra cache {names[1]} "
            f"{extra.arrangement}, expected one record twice or 528 with 288, in one arrangement"
        )
