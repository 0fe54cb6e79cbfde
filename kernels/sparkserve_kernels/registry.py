"""The operations there are: every folder beside this file is one, and its import must succeed."""

from __future__ import annotations

import importlib
from pathlib import Path

from sparkserve_kernels.meta import OpMeta


class RegistryError(RuntimeError):
    """A folder is no operation, or an unknown operation was asked for."""


def names() -> tuple[str, ...]:
    """Names of all operations, sorted."""
    return names_in(Path(__file__).parent)


def names_in(folder: Path) -> tuple[str, ...]:
    """Names of the operations that lie in a folder, sorted."""
    folders = (path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__")
    return tuple(sorted(path.name for path in folders))


def load(name: str, package: str = "sparkserve_kernels") -> OpMeta:
    """Metadata of one operation.

    Raises:
        RegistryError: no such operation (the message lists what exists), or a folder without a
            META of its own name.
        ImportError: the operation's folder does not import.
    """
    parent = importlib.import_module(package)
    known = names_in(Path(str(parent.__file__)).parent)
    if name not in known:
        raise RegistryError(f"no operation {name} (there are: {', '.join(known) or 'none yet'})")
    meta = getattr(importlib.import_module(f"{package}.{name}"), "META", None)
    if not isinstance(meta, OpMeta) or meta.name != name:
        raise RegistryError(f"{package}/{name}: META must be an OpMeta named {name}")
    return meta
