"""Where the bytes of a token lie: arithmetic without a kernel."""

import itertools

import pytest
from sparkserve_kernels.checks import KernelArgumentError
from sparkserve_kernels.kv_records.layouts import RECORDS, page_layout, require_pair

LAYOUTS = [
    (name, arrangement) for name, record in RECORDS.items() for arrangement in record.arrangements
]
LATENTS = [pair for pair in LAYOUTS if pair[0] != "index68"]


class TestPageArithmetic:
    @pytest.mark.parametrize(
        ("name", "slots", "page", "padded", "scale_base"),
        [
            ("584", 64, 37376, 37440, 36864),
            ("584", 256, 149504, 149760, 147456),
            ("432", 64, 27648, 27648, None),
            ("528", 64, 33792, 33792, 64 * 512),
            ("528", 256, 135168, 135168, 256 * 512),
            ("288", 64, 18432, 18432, 64 * 256),
            ("288", 256, 73728, 73728, 256 * 256),
            ("index68", 64, 4352, 4352, 4096),
        ],
    )
    def test_sizes(self, name, slots, page, padded, scale_base):
        layout = page_layout(name, slots)
        assert layout.page_bytes == page
        assert layout.padded_page_bytes == padded
        if scale_base is not None:
            assert layout.scale_base == scale_base

    @pytest.mark.parametrize(("name", "multiple", "step"), [("528", 512, 32), ("288", 256, 8)])
    def test_padding_is_nothing_for_a_multiple_of_the_step(self, name, multiple, step):
        for slots in range(1, 129):
            layout = page_layout(name, slots)
            padded = layout.padded_page_bytes
            assert padded % multiple == 0
            assert 0 <= padded - layout.page_bytes < multiple
            assert (padded == layout.page_bytes) == (slots % step == 0)

    @pytest.mark.parametrize(("name", "row"), [("528", 528), ("288", 288)])
    def test_interleaved_tokens_hold_their_scales_and_pages_no_padding(self, name, row):
        layout = page_layout(name, 7, "interleaved")
        assert (layout.data_stride, layout.scale_stride) == (row, row)
        assert layout.scale_offset(3) == 3 * row + RECORDS[name].data_bytes
        assert layout.padded_page_bytes == layout.page_bytes == 7 * row

    @pytest.mark.parametrize(("name", "arrangement"), LAYOUTS)
    def test_no_two_tokens_share_a_byte_and_none_is_left_over(self, name, arrangement):
        layout = page_layout(name, 5, arrangement)
        record = layout.record
        owned = []
        for slot in range(5):
            data, scales = layout.data_offset(slot), layout.scale_offset(slot)
            owned += range(data, data + record.data_bytes)
            owned += range(scales, scales + record.scale_bytes)
        assert sorted(owned) == list(range(layout.page_bytes))

    def test_what_no_engine_knows_is_refused(self):
        with pytest.raises(KernelArgumentError, match="record '585', expected one of 584, 432"):
            page_layout("585", 64)
        with pytest.raises(KernelArgumentError, match="584: arrangement 'interleaved', expected s"):
            page_layout("584", 64, "interleaved")
        with pytest.raises(KernelArgumentError, match="slots = 0, expected at least 1"):
            page_layout("584", 0)

    def test_pairs_of_a_main_and_an_extra_cache(self):
        taken = set()
        for one, other in itertools.product(LATENTS, LATENTS):
            main, extra = (page_layout(name, 64, arrangement) for name, arrangement in (one, other))
            try:
                require_pair(main, extra)
            except KernelArgumentError:
                continue
            taken.add((one, other))
        both = ("split", "interleaved")
        wanted = {(pair, pair) for pair in LATENTS if pair[0] != "288"}
        wanted |= {(("528", arrangement), ("288", arrangement)) for arrangement in both}
        assert taken == wanted
