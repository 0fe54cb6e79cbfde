"""What is built: the two demo models as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sparkserve.engram.layout import column_bounds, column_sizes


@dataclass(frozen=True)
class EngramRecipe:
    """Engram tables to add to a Llama."""

    vocab_size: int
    """Rows of each hash column, about."""
    heads: int
    """Columns per n-gram order."""
    strength: float
    """Root mean square of what the rows add, relative to that of the embedding."""
    max_ngram: int = 3
    head_dim: int = 64
    layer_ids: tuple[int, ...] = (0, 1)

    @property
    def columns(self) -> int:
        """Hash columns per layer."""
        return (self.max_ngram - 1) * self.heads

    @property
    def bounds(self) -> tuple[tuple[int, ...], ...]:
        """Column bounds of each layer."""
        sizes = column_sizes(len(self.layer_ids), self.max_ngram, self.heads, self.vocab_size)
        return tuple(column_bounds(layer) for layer in sizes)

    def config(self, *, pad_token_id: int, compressed_vocab_size: int) -> dict[str, Any]:
        """The fields that the model's config.json needs besides Llama's."""
        return {
            "architectures": ["EngramLlamaForCausalLM"],
            "engram_layer_ids": list(self.layer_ids),
            "engram_num_embeddings": [bounds[-1] for bounds in self.bounds],
            "engram_max_ngram_size": self.max_ngram,
            "engram_n_heads": self.heads,
            "engram_head_dim": self.head_dim,
            "engram_vocab_size": self.vocab_size,
            "engram_pad_token_id": pad_token_id,
            "engram_compressed_vocab_size": compressed_vocab_size,
            "hc_mult": 1,
        }


@dataclass(frozen=True)
class DemoRecipe:
    """One demo model."""

    name: str
    """Folder below ``checkpoints`` and below ``engram``."""
    engram: EngramRecipe
    tp_sizes: tuple[int, ...]
    """Rank counts for which rows are packed (layout columns)."""
    sampling: dict[str, float] = field(default_factory=dict)
    """What requests that say nothing are sampled with; empty = the engine's defaults."""

    def as_json(self) -> dict[str, Any]:
        """Everything that decides what is built, but for the weights."""
        return asdict(self)


SMOLLM2 = DemoRecipe(
    name="smollm2-135m-engram",
    # 9 attention heads, 3 key-value heads: the model divides by 3 and by nothing else.
    # One per cent moves log-probabilities by a few hundredths and no answer that is not a near
    # tie. "What is the capital of France?" alone is one, with or without rows (0.25 nat); with
    # "Answer in one short sentence." the right answer leads by 1.75 nat.
    engram=EngramRecipe(vocab_size=16000, heads=3, strength=0.01),
    tp_sizes=(1, 3),
    # The model's card samples so; at the engine's default of 1.0 it tells tales.
    sampling={"temperature": 0.2, "top_p": 0.9},
)
TINY = DemoRecipe(
    name="tiny-engram",
    engram=EngramRecipe(vocab_size=5000, heads=2, strength=0.5),
    tp_sizes=(1, 2),
)
