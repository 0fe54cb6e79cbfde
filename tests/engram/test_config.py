import pytest

from sparkserve.engram.config import EngramConfig, RowCountError
from sparkserve.engram.constants import DEEPSEEK_V41_FLASH
from sparkserve.errors import ConfigError

TEXT = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_vocab_size": 16000000,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99092,
    "hidden_size": 5120,
}
VISION = {"num_hidden_layers": 32, "hidden_size": 1024}


def without(name):
    return {key: value for key, value in TEXT.items() if key != name}


def test_the_released_config_is_read_from_its_nested_text_config():
    config = {"text_config": TEXT, "vision_config": VISION, "image_token_id": 129264}
    assert EngramConfig.from_config(config) == DEEPSEEK_V41_FLASH
    flat = {**TEXT, "vision_n_layers": 32, "image_token_id": 129264}
    assert EngramConfig.from_config(flat) == DEEPSEEK_V41_FLASH


def test_a_model_without_vision_blocks_no_image_token():
    for config in (TEXT, {**TEXT, "image_token_id": 129264}, {"text_config": TEXT}):
        assert EngramConfig.from_config(config).image_token_id is None
    zero = {**TEXT, "image_token_id": 129264, "vision_config": {"num_hidden_layers": 0}}
    assert EngramConfig.from_config(zero).image_token_id is None


def test_the_outer_level_wins_as_in_the_engine():
    config = {"text_config": {**TEXT, "engram_pad_token_id": 7}, "engram_pad_token_id": 2}
    assert EngramConfig.from_config(config).pad_token_id == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "names no engram_layer_ids"),
        ({"engram_layer_ids": []}, "names no engram_layer_ids"),
        (without("engram_head_dim"), "engram_head_dim: Field required"),
        ({**TEXT, "engram_head_dim": 250}, "engram_head_dim: Input should be a multiple of 32"),
        ({**TEXT, "engram_n_heads": 10**9}, "engram_n_heads: Input should be less than"),
        ({**TEXT, "engram_max_ngram_size": 10**9}, "engram_max_ngram_size: Input should be less"),
        ({**TEXT, "engram_head_dim": 32 * 10**9}, "engram_head_dim: Input should be less than"),
        ({**TEXT, "engram_n_heads": "many"}, "engram_n_heads: Input should be a valid integer"),
        (
            {**TEXT, "engram_num_embeddings": [384006168, 384016683]},
            r"engram_num_embeddings: \[384006168, 384016683\], but the primes from 16000000 up "
            r"sum to \[384006168, 384016682\]",
        ),
        ({**TEXT, "engram_num_embeddings": [384006168]}, "engram_num_embeddings: .* sum to"),
        ({**TEXT, "vision_config": VISION}, "vision layers but names no image_token_id"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_the_field(config, words):
    with pytest.raises(ConfigError, match=words):
        EngramConfig.from_config(config)


def test_row_counts_that_the_primes_do_not_make_are_told_from_a_bad_field():
    with pytest.raises(RowCountError):
        EngramConfig.from_config({**TEXT, "engram_num_embeddings": [384006168, 384016683]})
    with pytest.raises(ConfigError) as caught:
        EngramConfig.from_config({**TEXT, "engram_n_heads": "many"})
    assert not isinstance(caught.value, RowCountError)


def test_a_layer_without_a_table_is_named():
    with pytest.raises(ConfigError, match=r"layer 2 has no Engram table, expected one of \[1, 14"):
        DEEPSEEK_V41_FLASH.shard(2, "columns", 0, 4)
