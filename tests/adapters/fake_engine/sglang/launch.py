"""One fake engine process; what it is to do comes from the environment."""

import dataclasses
import logging
import os
import pkgutil
from importlib.metadata import entry_points
from pathlib import Path

from sglang.srt.plugins import load_plugins

logging.basicConfig(format="%(message)s")
TARGET = "sglang.srt.layers.engram.EngramEmbedding"


def accept_fake_source():
    """Let engram_rows accept this fake as the engine that it was made for."""
    from sparkserve.adapters import engram_rows
    from sparkserve.adapters.source import tree_digest

    digest = tree_digest(Path(__file__).parents[1], TARGET)
    target = dataclasses.replace(engram_rows.META.targets[0], digests={"0.5.23": (digest,)})
    engram_rows.META = dataclasses.replace(engram_rows.META, targets=(target,))


def broken_plugin():
    raise RuntimeError("a plugin of somebody else is broken")


def late_plugin():
    """Somebody else's class in the place of ours, after ours was installed."""
    from sglang.srt.layers import engram

    engram.EngramEmbedding = type("Late", (engram.EngramEmbedding,), {})


def main():
    if os.environ.get("FAKE_ACCEPT"):
        accept_fake_source()
    (ours,) = entry_points(group="sglang.srt.plugins", name="sparkserve")
    plugins = [broken_plugin, ours.load()]
    if os.environ.get("FAKE_LATE_PLUGIN"):
        plugins.append(late_plugin)
    load_plugins(*plugins)
    scheduler = pkgutil.resolve_name("sglang.srt.managers.scheduler").Scheduler(7)
    print("serving with", type(scheduler.table).__name__, flush=True)


if __name__ == "__main__":
    main()
