"""The rules by which ranks share an Engram table's rows; ``engram.ownership`` explains them."""

from __future__ import annotations

from typing import Literal

Layout = Literal["columns", "equal", "strided"]
