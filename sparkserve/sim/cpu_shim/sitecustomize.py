"""Lets torchvision import beside a CPU build of torch; run by Python at start-up.

torchvision's Python code describes its compiled operators ``nms`` and ``qnms`` to torch as soon
as it is imported. Its compiled part fits only the torch it was built with, so beside a CPU torch
the two names are unknown and the import fails. They are declared here, without implementation,
right before torchvision itself loads; nothing is imported unless somebody imports torchvision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _DeclareOperators:
    """Import hook that acts once, on the first search for torchvision, and finds nothing."""

    def __init__(self) -> None:
        # torch forgets a library's operators when the library object is collected.
        self._libraries: list[Any] = []

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname == "torchvision" and not self._libraries:
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in _SCHEMAS:
                library.define(schema)
            self._libraries.append(library)
        return None


sys.meta_path.insert(0, _DeclareOperators())
