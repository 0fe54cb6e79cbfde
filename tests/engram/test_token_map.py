import hashlib
import struct

import pytest

from sparkserve.engram.constants import DEEPSEEK_V41_FLASH, TOKENIZER_SIZE
from sparkserve.engram.token_map import compressed_ids, token_map
from sparkserve.errors import ConfigError
from tests.engram.real import MISSING, tokenizer_file

pytest.importorskip("tokenizers", reason="tokenizers is not installed: run `make engine`")


def tokenizer(*pieces):
    """A byte-level vocabulary of the given texts, in this order."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def symbols(text):
        if isinstance(text, bytes):
            # A byte above 0xa0 is its own symbol in the byte-level alphabet.
            return chr(text[0])
        return "".join(piece for piece, _ in level.pre_tokenize_str(text))

    vocab = {symbols(text): index for index, text in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.decoder = decoders.ByteLevel()
    return made


def test_case_accents_width_and_white_space_fold_together():
    pieces = ("a", "A", "á", "b", "ａ", " a", "a ", "\ta\n", "ﬁ", "fi")
    ids, count = token_map(tokenizer(*pieces))
    assert ids == [0, 0, 0, 1, 0, 0, 0, 0, 2, 2]
    assert count == 3


def test_white_space_alone_is_one_space_and_not_nothing():
    ids, count = token_map(tokenizer(" ", "\n", "\t\r\n", "  ", "x"))
    assert ids == [0, 0, 0, 0, 1]
    assert count == 2


def test_an_accent_alone_keeps_its_own_text():
    # Its normal form is empty, and so it is known by what it is.
    ids, _ = token_map(tokenizer("\u0301", "\u0300", "\u0301e"))
    assert len({ids[0], ids[1], ids[2]}) == 3


def test_a_part_of_a_character_is_known_by_its_raw_form():
    ids, count = token_map(tokenizer(b"\xc3", b"\xe9", "e"))
    assert ids == [0, 1, 2]
    assert count == 3


@pytest.mark.skipif(tokenizer_file() is None, reason=MISSING)
def test_the_real_tokenizer_compresses_to_the_number_that_every_hash_depends_on():
    from tokenizers import Tokenizer

    ids = compressed_ids(Tokenizer.from_file(str(tokenizer_file())), DEEPSEEK_V41_FLASH)
    assert (len(ids), max(ids) + 1, ids[2]) == (TOKENIZER_SIZE, 99092, 2)
    # Measured once, and equal to what SGLang 0.5.21 and 0.5.23 build from the same file.
    packed = struct.pack(f"<{len(ids)}I", *ids)
    assert hashlib.sha256(packed).hexdigest() == (
        "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
    )


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(ConfigError, match="2 tokens compress to 1 ids, expected 99092"):
        compressed_ids(tokenizer("a", "A"), DEEPSEEK_V41_FLASH)
