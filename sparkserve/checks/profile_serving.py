"""Settings of serving that mislead: no cap on answers, truth values written as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene, evidence
from sparkserve.checks.wish import said, wishes
from sparkserve.facts.rendered import RequestBody
from sparkserve.facts.wanted import Wanted, normal, whole_number

_CAPS = (
    "default_max_tokens", "dsv41_max_new_tokens", "default_max_new_tokens", "max_output_tokens",
    "default_max_output_tokens", "output_cap",
)  # fmt: skip
_TRUTHS = {
    "thinking", "enable_thinking", "stream", "echo", "logprobs", "parallel_tool_calls",
    "separate_reasoning", "stream_reasoning", "ignore_eos", "include_usage", "preserve_thinking",
    "skip_special_tokens", "add_generation_prompt", "continue_final_message", "use_beam_search",
    "include_reasoning", "default_chat_template_kwargs_thinking",
}  # fmt: skip
_WORDS = {"true", "false", "yes", "no", "on", "off", "0", "1", "t", "f", "y", "n", "none", "null"}
_SPOKEN = {
    "content", "text", "prompt", "input", "stop", "user", "name", "description", "model", "suffix",
}  # fmt: skip
_SPOKEN_BELOW = ("messages", "tools", "metadata", "response_format")
_FALSE = {"false", "no", "off", "0", "f", "n", "none", "null"}


def _output_cap(scene: Scene) -> Iterator[Judgement]:
    for told in said(scene, *_CAPS):
        cap, context = whole_number(told.value), told.wanted.context_tokens
        best = context // 4 if context else None
        bound = f"a cap of at most context/4 = {best}" if best else "a cap"
        if cap is None or cap <= 0:
            observed = f"{told.key}: {'null' if told.value is None else told.value}, so no cap"
        elif best is not None and cap > best:
            observed = f"{told.key}: {cap} > context {context} / 4 = {best}"
        else:
            yield passed(told.node, f"{told.key} {cap}" + (f", context {context}" if best else ""))
            continue
        yield Judgement(
            told.node, "fail", observed=observed, expected=bound,
            fix=f"{told.key}: {min(best, 32768) if best else 32768}",
            evidence=told.evidence,
        )  # fmt: skip


OUTPUT_CAP = Check(
    id="PROFILE.OUTPUT_CAP", code="SRV_NO_OUTPUT_CAP",
    title="Answers have a length that a client did not choose",
    stages=("profile", "launch", "doctor"), severity="error", fault_class="config",
    needs=(Wanted,), judge=_output_cap,
    why="a request without max_tokens may run to the end of the context and hold its slot",
    fix="default_max_tokens: 32768",
    symptom="one request never ends, while the queue behind it grows",
    text_only="a setting of neighbours' recipes; sparkserve's own profile has no such key",
)  # fmt: skip


def texts_for_truths(table: Mapping[str, Any], *, strict: bool = False) -> list[tuple[str, str]]:
    """(dotted key, text) of every truth value that is written as text, at any depth.

    strict: ``"true"`` and ``"false"`` count at every key that does not hold words of a person;
    in environment variables they are how truth values are written.
    """
    found: list[tuple[str, str]] = []
    left: list[tuple[str, Any]] = list(table.items())
    while left:
        key, value = left.pop(0)
        if isinstance(value, str) and "chat_template_kwargs" in normal(key) and "{" in value:
            value = _inner(value)
        if isinstance(value, Mapping):
            left += [(f"{key}.{name}", inner) for name, inner in value.items()]
        elif isinstance(value, str) and _is_wrong(key, value.strip().lower(), strict=strict):
            found.append((key, value))
    return found


def _is_wrong(key: str, word: str, *, strict: bool) -> bool:
    if _is_truth(key):
        return word in _WORDS
    spoken = normal(key).rpartition(".")[2] in _SPOKEN or normal(key).startswith(_SPOKEN_BELOW)
    return strict and word in ("true", "false") and not spoken


def _inner(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_truth(key: str) -> bool:
    plain = normal(key)
    return plain.rpartition(".")[2] in _TRUTHS or re.search(r"(?:^|_)kwargs\.", plain) is not None


def _string_false(scene: Scene) -> Iterator[Judgement]:
    for place, request, reading in scene.seen(RequestBody):
        wrong = texts_for_truths(request.body, strict=True)
        if wrong:
            yield _is_text(place, wrong, evidence([reading]))
        else:
            yield passed(place, "truth values of the request are true or false")
    for place, wanted, proof in wishes(scene):
        wrong = texts_for_truths(wanted.keys or {})
        if wrong:
            yield _is_text(place, wrong, proof)


def _is_text(place: str | None, wrong: list[tuple[str, str]], proof: tuple[str, ...]) -> Judgement:
    meant = ", ".join(
        f"{key}: {'false' if text.strip().lower() in _FALSE else 'true'}" for key, text in wrong
    )
    return Judgement(
        place, "fail",
        observed=", ".join(f'{key}: "{text}" is text' for key, text in wrong),
        expected="true or false without quotes",
        fix=f"write {meant}",
        verdict="REJECT",
        evidence=proof,
    )  # fmt: skip


STRING_FALSE = Check(
    id="PROFILE.STRING_FALSE", code="SRV_STRING_FALSE",
    title="Truth values are true or false, not text",
    stages=("profile", "eval", "verify", "doctor"), severity="error", fault_class="config",
    needs=(RequestBody, Wanted), judge=_string_false,
    why='a prompt builder tests for truth, and every text that is not empty is true: "false" '
    "switches thinking on",
    fix="write true or false without quotes",
    symptom='thinking: "false" still thinks, and so does "0"',
    text_only="what a client sends is seen by nobody but the server; own profiles are typed",
)  # fmt: skip

CHECKS: tuple[Check, ...] = (OUTPUT_CAP, STRING_FALSE)
