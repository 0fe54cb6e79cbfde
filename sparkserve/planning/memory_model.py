"""What one model takes on one rank: published figures, or what its own config.json says."""

from __future__ import annotations

from pydantic import Field

from sparkserve.facts.model_config import ModelConfig
from sparkserve.model.base import Model
from sparkserve.planning.memory_formulas import kv_bytes_per_token
from sparkserve.units import GIB

_EXPERT_BYTES = 40 * 384 * 18_800_640
_V41_REST_GIB = 10.0
_V41_MODEL = "deepseek-ai/DeepSeek-V4.1-Flash, published figures"


class ModelFigures(Model):
    """Sizes of one model that the memory plan is made of."""

    name: str
    source: str
    """Where the figures come from."""
    weights_gib: dict[int, float] = Field(default_factory=dict)
    """Weights of one rank by number of ranks, where somebody measured them."""
    total_gib: float | None = None
    """All weights together, for numbers of ranks that nobody measured."""
    rest_gib: float = 0.0
    """What every rank holds besides its part of ``total_gib``."""
    draft_gib: float = 0.0
    kv_bytes_per_token: float | None = None
    """On every rank alike; None = not known."""
    kv_note: str = ""
    swa_pool_gib: float = 0.0
    context_tokens: int | None = None
    """Longest context of the model."""
    engram_rows: int = 0
    """Rows of all Engram tables together."""
    indexer: bool = False
    """Whether prefill has the indexer whose peak grows with chunk x prefix."""

    def weights(self, ranks: int) -> tuple[float | None, str]:
        """(GiB of one rank, how that is known); None = not known."""
        if ranks in self.weights_gib:
            return self.weights_gib[ranks], f"published for {ranks} ranks"
        if self.total_gib is None:
            return None, "no size of the weights is known"
        share = f"{self.total_gib:.1f} GiB / {ranks}"
        rest = f" + {self.rest_gib:.1f} GiB that every rank holds" if self.rest_gib else ""
        return self.total_gib / ranks + self.rest_gib, f"derived: {share}{rest}"

    def fewest_ranks(self, room_gib: float, *, multiple_of: int = 1) -> int | None:
        """The smallest usual number of ranks whose weights fit a room; None = none does.

        multiple_of: number of expert groups, which must divide the ranks.
        """
        for ranks in (1, 2, 3, 4, 8):
            size, _ = self.weights(ranks)
            if ranks % multiple_of == 0 and size is not None and size <= room_gib:
                return ranks
        return None


V41_FLASH = ModelFigures(
    name="DeepSeek-V4.1-Flash",
    source=_V41_MODEL,
    weights_gib={2: 145.0, 3: 101.0, 4: 77.0},
    total_gib=_EXPERT_BYTES / GIB,
    rest_gib=_V41_REST_GIB,
    draft_gib=2.5,
    kv_bytes_per_token=kv_bytes_per_token(),
    kv_note="(584 + 68) x 2.5 x 41/40 bytes",
    swa_pool_gib=0.34,
    context_tokens=1_048_576,
    engram_rows=384_006_168 + 384_016_682,
    indexer=True,
)
"""Weights of 2, 3 and 4 ranks as published (3: with padding). Other numbers: 288.78 GB of experts
divided, and 10 GiB besides, the difference between the published 77 GiB and a quarter of them."""

V4_FLASH_SOLO = ModelFigures(
    name="DeepSeek-V4-Flash, EXL3 3.0 bpw",
    source="0xSero/deepseek-v4-flash-0731-spark, published figures",
    weights_gib={1: 99.5},
    draft_gib=3.0,
    kv_note="not published; 402,000 to 440,000 tokens were measured",
    context_tokens=384_000,
)
_KNOWN: tuple[tuple[tuple[str, ...], ModelFigures], ...] = (
    (("deepseek-v4.1-flash", "deepseek_v41", "dsv41"), V41_FLASH),
    (("deepseek-v4-flash-0731-spark", "dsv4-solo"), V4_FLASH_SOLO),
)


def published(*names: str | None) -> ModelFigures | None:
    """Figures of a model that others measured, by any of its names; None = none are known."""
    text = " ".join(name for name in names if name).lower()
    for marks, figures in _KNOWN:
        if any(mark in text for mark in marks):
            return figures
    return None


def from_config(config: ModelConfig, *, ranks: int, weights_bytes: int | None) -> ModelFigures:
    """Figures of a model by its own config.json.

    weights_bytes: sum of its safetensors files without Engram tables; None = not known. Weights
    are taken to divide by the ranks; what every rank holds alike is not in a config.json.
    """
    names = [str(config.values.get(key)) for key in ("model_type", "_name_or_path")]
    names += [str(one) for one in config.values.get("architectures") or ()]
    known = published(*names)
    if known is not None:
        return known
    size, note = _kv_of(config, ranks)
    return ModelFigures(
        name=str(config.values.get("model_type") or "model"),
        source="config.json and the checkpoint's files",
        total_gib=None if weights_bytes is None else weights_bytes / GIB,
        kv_bytes_per_token=size,
        kv_note=note,
        context_tokens=config.count("max_position_embeddings"),
    )


def _kv_of(config: ModelConfig, ranks: int) -> tuple[float | None, str]:
    layers = config.count("num_hidden_layers", "n_layer")
    latent = config.count("kv_lora_rank")
    if layers is None:
        return None, "config.json names no number of layers"
    if latent is not None:
        width = latent + (config.count("qk_rope_head_dim") or 0)
        return 2.0 * layers * width, f"{layers} layers x {width} latent values x 2 B"
    heads = config.count("num_key_value_heads", "num_attention_heads", "n_head")
    hidden = config.count("hidden_size", "n_embd")
    all_heads = config.count("num_attention_heads", "n_head")
    own_width = config.count("head_dim")
    if own_width is None and hidden and all_heads:
        own_width = hidden // all_heads
    if heads is None or own_width is None:
        return None, "config.json names no heads"
    own = max(heads // ranks, 1)
    return 4.0 * layers * own * own_width, f"2 x {layers} layers x {own} heads x {own_width} x 2 B"
