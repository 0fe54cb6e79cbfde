"""What every noun has in common: frozen, strict about unknown keys, digestible."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A noun: immutable, and an unknown key is an error rather than silence."""

    # The text below a field is its documentation; references are generated from it.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no optional white space, so that equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any) -> str:
    """Sha256 (64 hex digits) of the canonical JSON of a model or of plain JSON data."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()
