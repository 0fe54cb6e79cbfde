"""Build one demo model into a root's folders, whole or not at all, and only when needed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkserve.model.base import digest
from sparkserve.sim.build_demo import tables
from sparkserve.sim.build_demo.parts import Llama, Progress
from sparkserve.sim.build_demo.recipe import DemoRecipe

MANIFEST = "sparkserve-demo.json"
_SEED = 1


@dataclass(frozen=True)
class Built:
    """A demo model that lies ready."""

    name: str
    checkpoint: Path
    engram: Path
    fresh: bool
    """Whether this call built it; False = it was there already."""


def build(
    root: Path,
    recipe: DemoRecipe,
    read_llama: Callable[[], Llama],
    *,
    inputs: dict[str, str],
    progress: Progress,
) -> Built:
    """Make ``<root>/checkpoints/<name>`` and ``<root>/engram/<name>``.

    read_llama: called only when there is something to build.
    inputs: what the model is made from, name -> digest; a change rebuilds.

    Raises:
        OSError: no space or no permission; what was there before is intact.
    """
    checkpoint = root / "checkpoints" / recipe.name
    engram = root / "engram" / recipe.name
    identity = digest({"recipe": recipe.as_json(), "inputs": inputs, "code": _code_digest()})
    if _is_whole(checkpoint, engram, identity):
        progress(f"{recipe.name} is already built in {root}")
        return Built(recipe.name, checkpoint, engram, fresh=False)
    parts = [_part_of(checkpoint), _part_of(engram)]
    try:
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        _write(recipe, read_llama(), parts[0], parts[1], progress)
        manifest = {"schema_version": 1, "identity": identity, "inputs": inputs}
        sizes = {"checkpoint": _sizes(parts[0]), "engram": _sizes(parts[1])}
        text = json.dumps(manifest | sizes, indent=1)
        (parts[0] / MANIFEST).write_text(text, encoding="utf-8")
        for part in parts:
            _settle(part)
        # The checkpoint goes last: its manifest vouches for both folders.
        _swap_in(parts[1], engram)
        _swap_in(parts[0], checkpoint)
    finally:
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
    progress(f"{recipe.name} is built in {root}")
    return Built(recipe.name, checkpoint, engram, fresh=True)


def _write(
    recipe: DemoRecipe, llama: Llama, checkpoint: Path, engram: Path, progress: Progress
) -> None:
    from safetensors.torch import save_file
    from tokenizers import Tokenizer

    from sparkserve.engram.token_map import token_map

    progress("writing the tokenizer")
    llama.save_tokenizer(checkpoint)
    _, compressed = token_map(Tokenizer.from_file(str(checkpoint / "tokenizer.json")))
    config = llama.config | recipe.engram.config(
        pad_token_id=llama.config["pad_token_id"], compressed_vocab_size=compressed
    )
    (checkpoint / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if recipe.sampling:
        text = json.dumps({"do_sample": True, **recipe.sampling}, indent=1)
        (checkpoint / "generation_config.json").write_text(text, encoding="utf-8")
    progress(f"making Engram tables of {config['engram_num_embeddings']} rows")
    packed = tables.tables(recipe.engram, _SEED)
    added = tables.tensors(recipe.engram, packed, llama.tensors["model.embed_tokens.weight"])
    progress("writing the checkpoint")
    save_file(
        llama.tensors | added, str(checkpoint / "model.safetensors"), metadata={"format": "pt"}
    )
    for tp in recipe.tp_sizes:
        progress(f"packing Engram rows for {tp} rank{'s' if tp > 1 else ''}")
        tables.pack(checkpoint, engram, tp)


def _is_whole(checkpoint: Path, engram: Path, identity: str) -> bool:
    try:
        manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    listed = {name: checkpoint / name for name in manifest.get("checkpoint", {})}
    return (
        manifest.get("identity") == identity
        and manifest["checkpoint"] == {n: p.stat().st_size for n, p in listed.items() if p.exists()}
        and manifest["engram"] == _sizes(engram)
    )


def _sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    # Hidden ones are the packer's locks, which say nothing about the model.
    listed = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    return {path.name: path.stat().st_size for path in listed}


def _code_digest() -> str:
    """Digest of the sources that decide the files' content: a changed builder builds again."""
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *(here.parents[1] / "engram").glob("*.py")])
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _part_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{os.getpid()}.part")


def _settle(folder: Path) -> None:
    """Bring a folder's files to the disk, readable by other users (safetensors writes 0600)."""
    for path in (*folder.iterdir(), folder):
        path.chmod(0o755 if path.is_dir() else 0o644)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap_in(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
