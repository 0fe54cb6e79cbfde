"""``config.json`` of a checkpoint: the sizes that decide how it splits and what it needs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.model.reading import Reading

_MOST = 10**12


class ModelConfig(Fact):
    """What a checkpoint says of itself."""

    values: dict[str, Any]
    """Keys of ``config.json``; those of ``text_config`` count as the model's own."""

    def count(self, *names: str) -> int | None:
        """The first of these settings that is a positive whole number; None where none is."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
                return value
        return None


def parse_config(text: str) -> ModelConfig:
    """Read the text of a ``config.json``.

    Raises:
        UnusableOutput: no JSON object, or one without any key.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableOutput(f"no JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict) or not data:
        raise UnusableOutput("no JSON object with settings")
    inner = data.get("text_config")
    return ModelConfig(values=data | inner if isinstance(inner, dict) else data)


def _parse(reading: Reading) -> Iterable[Fact]:
    yield parse_config(reading.text)


READERS: tuple[Reader, ...] = (
    Reader(
        id="model_config.config_json",
        gives=(ModelConfig,),
        parse=_parse,
        commands=(r"(?:cat|jq|head|python3? -m json\.tool)\b.*\bconfig\.json\b.*",),
        paths=(r"(?:.*/)?config\.json",),
        whats=(
            r"(?:the )?(?:model |model's |checkpoint |hf )?config(?:\.json)?"
            r"(?: of the (?:model|checkpoint))?",
        ),
    ),
)
ASKS: tuple[Ask, ...] = ()
