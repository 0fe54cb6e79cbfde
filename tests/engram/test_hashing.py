"""The hash reference against the published vectors and against windows worked out by hand."""

import numpy as np
import pytest

from sparkserve.engram import multipliers
from sparkserve.engram.config import EngramConfig
from sparkserve.engram.constants import DEEPSEEK_V41_FLASH, MULTIPLIERS, PRIMES
from sparkserve.engram.hashing import RowHasher
from sparkserve.errors import ConfigError

# Ids of already compressed windows, distance 0 first: the published vectors of layers 1 and 14.
GOLDEN = {
    (40, 30, 20, 10): (
        "1326936 22120929 40011923 55142539 77849479 85421395 105208034 120570043 142088989 "
        "151706440 164511320 186980067 199834903 222266846 231919637 244765195 270969918 "
        "287524568 292261800 310632033 322879311 341250912 361620893 378628807",
        "5403109 26519290 42262171 52759697 74009651 83431750 98759453 114437397 136663117 "
        "159466275 161102974 190712189 206344738 219595678 225703309 243746465 258079010 "
        "283475728 290789713 309926711 321434350 340293184 357342800 378588994",
    ),
    (99091, 99091, 99091, 99091): (
        "12193612 18525611 33702377 52176866 70091373 89450377 100640027 117454273 132502226 "
        "152419423 173413713 189351958 194969302 209293786 229174967 253024778 260190704 "
        "284725966 293362090 315475397 320215429 344323020 359453686 375130424",
        "11374428 25091813 43617803 57220055 64396657 95639585 110409065 125397095 139959227 "
        "147368762 164939877 182756675 200610703 213273209 227694064 243385862 266572408 "
        "276569763 290740789 310432482 324536558 339160626 355582586 375878100",
    ),
    (1, 2, 2, 2): (
        "12185977 23020615 44369337 55158415 71342368 92737236 103434690 125152884 134579136 "
        "151625402 164302473 177410262 205472301 211503218 228549774 248919496 263874986 "
        "280107136 293888364 316779443 326706724 349597889 355906082 379615911",
        "10505031 24441816 41166078 52315658 73890979 80299715 98474523 123562968 135926974 "
        "155819816 170524818 178309260 205554919 208583864 234966981 254428696 261208473 "
        "278024842 303549726 314489076 322598938 340235359 359882920 378116450",
    ),
}
# Token ids fold in pairs: 0 and 1 to 0, 2 and 3 to 1, ... Pad token 4 folds to 2.
FOLDED = [token // 2 for token in range(20)]
PAD = 2
SMALL = EngramConfig(
    layer_ids=(0, 3),
    num_embeddings=(101 + 103 + 107 + 109 + 113 + 127, 131 + 137 + 139 + 149 + 151 + 157),
    max_ngram_size=4,
    n_heads=2,
    head_dim=32,
    vocab_size=100,
    pad_token_id=4,
    compressed_vocab_size=10,
    image_token_id=18,
)


@pytest.fixture
def hasher():
    return RowHasher.of(SMALL, FOLDED)


def ids_by_hand(config, compressed):
    """The definition in plain Python integers, one window at a time."""
    ids = []
    for layer, (primes, drawn) in enumerate(
        zip(config.primes, multipliers.hash_multipliers(config), strict=True)
    ):
        mixed, row = compressed[0] * drawn[0], []
        for order in range(1, config.max_ngram_size):
            mixed ^= compressed[order] * drawn[order]
            for head in range(config.n_heads):
                column = (order - 1) * config.n_heads + head
                row.append(mixed % primes[column] + config.all_bounds[layer][column])
        ids.append(row)
    return ids


def windows_by_hand(tokens, *, image=18, stops=(-1, 18)):
    """Compressed window of every token of a text, by the sentences of the specification."""
    windows = []
    for place in range(len(tokens)):
        window, ended = [], False
        for distance in range(4):
            token = tokens[place - distance] if distance <= place else None
            token = image if token is not None and token >= 1_000_000 else token
            ended = ended or token is None or token in stops
            window.append(PAD if ended else token // 2)
        windows.append(window)
    return windows


@pytest.mark.parametrize("window", GOLDEN, ids=str)
def test_windows_hash_to_the_published_row_ids(window):
    # Compressed ids are their own tokens here, so the real tokenizer is not needed.
    released = RowHasher.of(DEEPSEEK_V41_FLASH, [*range(99092), *[0] * 30188])
    ids = released.hash_compressed(np.array([window]))
    assert ids.dtype == np.int64
    assert ids.shape == (1, 2, 24)
    for layer, golden in enumerate(GOLDEN[window]):
        assert ids[0, layer].tolist() == [int(text) for text in golden.split()]


def test_computed_primes_and_multipliers_of_the_released_model_are_the_published_ones():
    config = DEEPSEEK_V41_FLASH
    config.check_row_counts()
    assert config.primes == (PRIMES[1], PRIMES[14])
    assert multipliers.hash_multipliers(config) == (MULTIPLIERS[1], MULTIPLIERS[14])
    assert multipliers.multiplier_bound(99092) == 46539438283891
    # The largest compressed id times the largest multiplier stays a positive int64.
    assert 99091 * (2 * 46539438283890 + 1) < 2**63
    assert (config.columns, config.row_bytes) == (24, 264)


def test_a_numpy_that_draws_other_numbers_is_refused_by_its_version(monkeypatch):
    monkeypatch.setattr(multipliers, "_SEED_STEP", 10008)
    with pytest.raises(ConfigError, match=r"numpy .* for layer 1, expected \[76632096046245, "):
        multipliers.hash_multipliers(DEEPSEEK_V41_FLASH)
    # A model of other sizes has no golden values to be compared with.
    multipliers.hash_multipliers(SMALL)


def test_a_texts_windows_start_with_the_pad_token(hasher):
    tokens = [7, 9, 11, 13, 15]
    assert windows_by_hand(tokens)[:3] == [[3, PAD, PAD, PAD], [4, 3, PAD, PAD], [5, 4, 3, PAD]]
    ids = hasher.hash_text(tokens)
    expected = [ids_by_hand(SMALL, window) for window in windows_by_hand(tokens)]
    assert ids.tolist() == expected


def test_no_n_gram_reaches_across_an_image(hasher):
    # The image stands under its own token once and twice under ids of parts of it.
    tokens = [1, 3, 5, 18, 7, 9, 1_000_000, 1_999_999, 11, 13, 15, 17, 1]
    windows = windows_by_hand(tokens)
    assert windows[3] == [PAD] * 4
    assert windows[5] == [4, 3, PAD, PAD]
    assert windows[12] == [0, 8, 7, 6]
    expected = [ids_by_hand(SMALL, window) for window in windows]
    assert hasher.hash_text(tokens).tolist() == expected


def test_minus_one_is_padding_that_ends_every_n_gram(hasher):
    # Shape of the published case: the last two of five ids are placeholders.
    tokens = [16, 9, 17, -1, -1, 5]
    windows = windows_by_hand(tokens)
    assert windows[3] == windows[4] == [PAD] * 4
    assert windows[5] == [2, PAD, PAD, PAD]
    expected = [ids_by_hand(SMALL, window) for window in windows]
    assert hasher.hash_text(tokens).tolist() == expected


@pytest.mark.parametrize("wrong", [20, 999_999, -2, 2**40])
def test_a_token_id_that_the_tokenizer_does_not_have_is_an_error(wrong):
    blind = RowHasher.of(SMALL.model_copy(update={"image_token_id": None}), FOLDED)
    with pytest.raises(ConfigError, match=rf"token id {wrong} at distance 0 of token 2, exp"):
        blind.hash_text([1, 2, wrong, 3])
    # Behind a text's start it is not looked at.
    blocked = np.array([[False, True, True, True]])
    blind.hash_windows(np.array([[1, wrong, 2, 3]]), blocked)


def test_a_model_without_vision_hashes_the_image_token_like_any_other():
    blind = RowHasher.of(SMALL.model_copy(update={"image_token_id": None}), FOLDED)
    windows = windows_by_hand([1, 18, 3], stops=(-1,))
    assert windows[2] == [1, 9, 0, PAD]
    expected = [ids_by_hand(SMALL, window) for window in windows]
    assert blind.hash_text([1, 18, 3]).tolist() == expected


def test_no_tokens_give_no_rows(hasher):
    assert hasher.hash_text([]).shape == (0, 2, 6)


@pytest.mark.parametrize(
    ("folded", "words"),
    [
        (FOLDED[:18], "compresses to 9 ids, expected 10"),
        ([*FOLDED, 10], "compresses to 11 ids, expected 10"),
        ([*FOLDED[2:18], 9], "image token 18 is beyond the 17 token ids"),
    ],
)
def test_a_tokenizer_that_is_not_the_models_is_refused(folded, words):
    with pytest.raises(ConfigError, match=words):
        RowHasher.of(SMALL, folded)
