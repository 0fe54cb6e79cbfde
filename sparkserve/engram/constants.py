"""What DeepSeek-V4.1-Flash was released with: the golden values that computed ones must equal.

Everything here can be computed (layout.py, multipliers.py). It is written down all the same,
because one changed prime or multiplier moves every row of a table and no error would be seen:
the model only answers worse.
"""

from __future__ import annotations

from sparkserve.engram.config import EngramConfig

DEEPSEEK_V41_FLASH = EngramConfig(
    layer_ids=(1, 14),
    num_embeddings=(384006168, 384016682),
    max_ngram_size=4,
    n_heads=8,
    head_dim=256,
    vocab_size=16_000_000,
    pad_token_id=2,
    compressed_vocab_size=99092,
    image_token_id=129264,
)
TOKENIZER_SIZE = 129280
"""Token ids of the released tokenizer, before compression."""

PRIMES: dict[int, tuple[int, ...]] = {
    1: (
        16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
        16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
        16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463,
    ),
    14: (
        16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
        16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769,
        16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889,
    ),
}  # fmt: skip
"""Rows of each hash column by layer, bigrams first, eight heads each."""

MULTIPLIERS: dict[int, tuple[int, ...]] = {
    1: (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    14: (67716810739261, 51510806800915, 30921347202721, 82619226485591),
}
"""Hash multiplier of each distance by layer; the token itself first."""
