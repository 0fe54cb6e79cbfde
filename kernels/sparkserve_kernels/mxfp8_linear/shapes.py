"""Layers of the model this operation serves: one rank's shapes (config.json of the release)."""

from __future__ import annotations

LAYERS: dict[str, tuple[int, int]] = {
    "wqkv_a": (1792, 5120),
    "wq_b": (8192, 1280),
    "wo_b": (5120, 2048),
    "shared gate_up": (1152, 5120),
    "shared down": (5120, 576),
    "indexer wq_b": (4096, 1280),
    "engram.wkv": (25600, 6144),
    "main_proj": (5120, 15360),
    "wq_b TP3": (16384, 1280),
    "wo_b TP3": (5120, 4096),
    "shared gate_up TP3": (1536, 5120),
    "shared down TP3": (5120, 768),
    "wo_b TP8": (5120, 1024),
    "shared gate_up TP8": (576, 5120),
    "shared down TP8": (5120, 288),
}
"""(N, K); those without a TP are of four ranks, or the same on any number."""
