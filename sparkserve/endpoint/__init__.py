"""The OpenAI-compatible endpoint seen from outside: ask, stream, measure, judge plausibility."""

from __future__ import annotations

from sparkserve.endpoint.client import Endpoint
from sparkserve.endpoint.metrics import Sample, parse_metrics
from sparkserve.endpoint.plausible import implausible
from sparkserve.endpoint.replies import ChatDelta, ChatReply, Usage

__all__ = [
    "ChatDelta",
    "ChatReply",
    "Endpoint",
    "Sample",
    "Usage",
    "implausible",
    "parse_metrics",
]
