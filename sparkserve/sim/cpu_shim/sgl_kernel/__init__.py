"""Stand-in for the compiled ``sgl_kernel``, of which no build for CPU-only machines exists.

Every name can be imported, so that SGLang's modules load; calling one raises, so that a path
which really needs a kernel fails loudly instead of computing something else.
"""

from __future__ import annotations

from typing import NoReturn

__version__ = "0.4.10"


class _MissingKernel:
    """A kernel that is not there."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{self.__name__} needs the compiled kernel")

    def __repr__(self) -> str:
        return f"<missing kernel {self.__name__}>"


def __getattr__(name: str) -> _MissingKernel:
    # Dunder names are Python's own questions (is this a package? does it export __all__?).
    if name.startswith("__"):
        raise AttributeError(name)
    return _MissingKernel(name)
