"""Facts: parsed observations of one node, or the reason why something was not observed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from sparkserve.model.base import Model

T = TypeVar("T", bound=Model)


class Unobserved(Model):
    """A probe that gave no usable answer; never to be read as zero, empty or well."""

    reason: str
    raw: str = ""
    """What the node printed, shortened."""


class Observed(Model, Generic[T]):
    """A probe's answer; exactly one of the two fields is set."""

    value: T | None = None
    unobserved: Unobserved | None = None


class NodeFacts(Model):
    """Everything that was read from one node in one round trip."""

    node: str
    collected_at: datetime
    elapsed_s: float
    values: dict[str, Any]
    """Probe id -> the parsed model, or Unobserved."""

    def get(self, probe_id: str, kind: type[T]) -> T | Unobserved:
        """Answer of one probe as the model it parses to.

        Returns:
            Unobserved where the probe did not run or gave no usable answer.
        """
        value = self.values.get(probe_id)
        if isinstance(value, kind | Unobserved):
            return value
        if value is None:
            return Unobserved(reason=f"probe {probe_id} did not run")
        return kind.model_validate(value)
