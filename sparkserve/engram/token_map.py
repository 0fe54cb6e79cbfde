"""The compressed vocabulary: tokens that read alike share one id in the Engram hash."""

from __future__ import annotations

from typing import Any

from sparkserve.engram.config import EngramConfig
from sparkserve.errors import ConfigError

_LONE_SPACE = "\ue000"
"""Private-use stand-in that keeps a token of one space from being stripped to nothing."""
_REPLACEMENT = "\ufffd"


def token_map(tokenizer: Any) -> tuple[list[int], int]:
    """Compressed id of every token id, and how many compressed ids there are.

    tokenizer: a Hugging Face ``tokenizers.Tokenizer``.

    Notes: new ids are given in order of first appearance. A token that decodes to part of a
    character is told apart by its raw form; one whose normal form is empty by its text.
    """
    from tokenizers import Regex, normalizers

    normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
    ids: dict[str, int] = {}
    compressed: list[int] = []
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if _REPLACEMENT in text:
            key = tokenizer.id_to_token(token_id)
        else:
            key = normalizer.normalize_str(text) or text
        compressed.append(ids.setdefault(key, len(ids)))
    return compressed, len(ids)


def compressed_ids(tokenizer: Any, config: EngramConfig) -> list[int]:
    """Compressed id of every token id of a model's tokenizer.

    Raises:
        ConfigError: another number of compressed ids than the model was trained with: this is not
            the model's tokenizer, or it normalises text in another way.
    """
    compressed, count = token_map(tokenizer)
    if count != config.compressed_vocab_size:
        raise ConfigError(
            f"the tokenizer's {len(compressed)} tokens compress to {count} ids, expected "
            f"{config.compressed_vocab_size}: every hash depends on that number",
            hint="compare tokenizer.json with the checkpoint's",
        )
    return compressed
