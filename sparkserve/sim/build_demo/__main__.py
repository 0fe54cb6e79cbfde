"""``python -m sparkserve.sim.build_demo ROOT [--tiny] [--weights FILE.gguf]``."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from sparkserve.errors import SparkserveError
from sparkserve.sim.build_demo.build import Built, build
from sparkserve.sim.build_demo.recipe import SMOLLM2, TINY
from sparkserve.sim.build_demo.smollm2 import find_weights, read_llama
from sparkserve.sim.build_demo.tiny import tiny_llama


def main() -> None:
    """Build, and print where the model lies as one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkserve.sim.build_demo", description=__doc__
    )
    parser.add_argument("root", type=Path, help="folder that gets checkpoints/ and engram/")
    parser.add_argument("--tiny", action="store_true", help="random weights, no download")
    parser.add_argument("--weights", type=Path, help="GGUF file instead of the installed package's")
    options = parser.parse_args()
    try:
        built = _build(options)
    except SparkserveError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        raise SystemExit(error.exit_code) from error
    answer = {
        "name": built.name,
        "checkpoint": str(built.checkpoint),
        "engram": str(built.engram),
        "fresh": built.fresh,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _build(options: argparse.Namespace) -> Built:
    root = options.root.absolute()
    if options.tiny:
        return build(root, TINY, tiny_llama, inputs={}, progress=_say)
    weights = options.weights or find_weights()
    with weights.open("rb") as file:
        inputs = {weights.name: hashlib.file_digest(file, "sha256").hexdigest()}
    return build(root, SMOLLM2, lambda: read_llama(weights, _say), inputs=inputs, progress=_say)


def _say(line: str) -> None:
    sys.stderr.write(f"demo model: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
