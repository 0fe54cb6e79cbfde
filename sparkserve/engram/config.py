"""What a model's config.json says about its Engram tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from sparkserve.engram.layout import column_bounds, column_sizes
from sparkserve.engram.ownership import Layout
from sparkserve.engram.shard import ShardIdentity, row_bytes_of
from sparkserve.errors import ConfigError
from sparkserve.model.base import Model


class RowCountError(ConfigError):
    """Each value is possible, but the tables' rows are not the sums of their columns' primes."""


class EngramConfig(Model):
    """The Engram fields of a model's config.json, and the table layout that follows from them.

    The upper limits are far from any model; without them a mistyped field is computed for ever.
    """

    layer_ids: tuple[int, ...] = Field(min_length=1)
    """Decoder layers that have a table, in the order in which primes are drawn for them."""
    num_embeddings: tuple[int, ...]
    """Rows of each layer's table."""
    max_ngram_size: int = Field(ge=2, le=64)
    """Longest n-gram; the orders are 2 up to this."""
    n_heads: int = Field(ge=1, le=1024)
    """Hash columns per n-gram order."""
    head_dim: int = Field(ge=32, le=1 << 19, multiple_of=32)
    """Values per row."""
    vocab_size: int = Field(ge=1)
    """Where the search for the columns' primes begins; no vocabulary despite its name."""
    pad_token_id: int = Field(ge=0)
    """Token that stands in for what must not be looked back at; an id of the tokenizer."""
    compressed_vocab_size: int = Field(ge=1)
    """How many ids are left once tokens that read alike share one."""
    image_token_id: int | None = None
    """Token that n-grams do not reach across; none in a model without vision."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EngramConfig:
        """Read a config.json; the fields may lie in its ``text_config``.

        config: the parsed file.

        Raises:
            ConfigError: no Engram fields, or one of them missing or impossible.
            RowCountError: as ``check_row_counts``.
        """
        text = config.get("text_config")
        # As the engine flattens it: the outer level wins.
        flat = {**(text if isinstance(text, Mapping) else {}), **config}
        if not flat.get("engram_layer_ids"):
            raise ConfigError("config.json names no engram_layer_ids: the model has no tables")
        prefix = "engram_"
        names = (name for name in cls.model_fields if prefix + name in flat)
        fields = {name: flat[prefix + name] for name in names}
        fields["image_token_id"] = _image_token(flat)
        try:
            made = cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"config.json, engram_{name}: {first['msg']}") from error
        made.check_row_counts()
        return made

    def check_row_counts(self) -> None:
        """Compare the row counts with the sums of the primes.

        Raises:
            RowCountError: they differ, so that ids would not fit the tables.
        """
        expected = tuple(bounds[-1] for bounds in self.all_bounds)
        if self.num_embeddings != expected:
            raise RowCountError(
                f"config.json, engram_num_embeddings: {list(self.num_embeddings)}, but the primes "
                f"from {self.vocab_size} up sum to {list(expected)}"
            )

    @property
    def columns(self) -> int:
        """Hash columns, and so rows looked up per token, of each layer."""
        return (self.max_ngram_size - 1) * self.n_heads

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: its weights and then its scales."""
        return row_bytes_of(self.head_dim)

    @property
    def primes(self) -> tuple[tuple[int, ...], ...]:
        """Rows of each column, [layers][columns], order-major."""
        return column_sizes(len(self.layer_ids), self.max_ngram_size, self.n_heads, self.vocab_size)

    @property
    def all_bounds(self) -> tuple[tuple[int, ...], ...]:
        """Column bounds of each layer, [layers][columns + 1]."""
        return tuple(column_bounds(sizes) for sizes in self.primes)

    def bounds(self, layer: int) -> tuple[int, ...]:
        """Column bounds of one layer's table, [columns + 1].

        layer: a decoder layer, one of ``layer_ids``.

        Raises:
            ConfigError: that layer has no table.
        """
        if layer not in self.layer_ids:
            raise ConfigError(
                f"layer {layer} has no Engram table, expected one of {list(self.layer_ids)}"
            )
        return self.all_bounds[self.layer_ids.index(layer)]

    def shard(self, layer: int, layout: Layout, rank: int, tp: int) -> ShardIdentity:
        """What one rank's shard of one layer must be."""
        return ShardIdentity(layer, rank, tp, layout, self.bounds(layer), self.row_bytes)


def _image_token(flat: Mapping[str, Any]) -> Any:
    """The image token of a model with vision; None without, as in the engine.

    Raises:
        ConfigError: the model sees, but names no token for what it sees.
    """
    vision = flat.get("vision_config")
    outer = vision.get("num_hidden_layers", 0) if isinstance(vision, Mapping) else 0
    if not flat.get("vision_n_layers", outer):
        return None
    if flat.get("image_token_id") is None:
        raise ConfigError("config.json has vision layers but names no image_token_id")
    return flat["image_token_id"]
