"""Samples, plans and records of evaluations and benchmarks."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparkserve.facts.jsontext import count, json_objects, mapping, number, words
from sparkserve.facts.probe import UnusableOutput
from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.reply_forms import Finish, Reply, finish_of, replies_of, usage_of
from sparkserve.facts.run_marks import runs_of
from sparkserve.facts.settings_text import flat_settings
from sparkserve.model.base import Model
from sparkserve.model.reading import Reading

_ANSWERS = ("answer", "extracted", "extracted_answer", "prediction", "predicted", "pred", "parsed")
_GOLDS = ("gold", "expected", "target", "reference", "label", "truth", "ground_truth")
_VERDICTS = ("correct", "ok", "passed", "pass", "is_correct", "success", "score", "acc",
             "exact_match")  # fmt: skip
_FINISHES = ("finish", "finish_reason", "stop_reason", "finished", "end")
_REASONING = ("reasoning_content", "reasoning", "thinking_text", "reasoning_text", "thoughts")
_WORDS = {"true": True, "pass": True, "passed": True, "ok": True, "correct": True, "c": True,
          "false": False, "fail": False, "failed": False, "wrong": False, "incorrect": False,
          "i": False}  # fmt: skip
_HOLDERS = ("samples", "results", "items", "records", "runs", "requests")
_OFF = ("none", "off", "false", "no", "disabled", "0", "no-think", "nothink", "non-thinking")


class EvalSample(Model):
    """One sample of an evaluation; None = the text does not say."""

    correct: bool | None = None
    extractable: bool | None = None
    finish: Finish | None = None
    thought: bool | None = None
    """Whether it holds reasoning, or was charged for some."""
    uses_tools: bool | None = None


class EvalSamples(Fact):
    """Samples of one evaluation, in order."""

    samples: tuple[EvalSample, ...]


class EvalPlan(Fact):
    """What an evaluation meant to send."""

    thinking: bool | None = None
    max_tokens: int | None = None
    tools: bool | None = None
    """Whether its tasks are given tools."""


class BenchRecord(Model):
    """One measured speed; None = the record does not say."""

    prompt_class: str | None = None
    tokens_per_s: float | None = None
    acceptance: float | None = None
    """Share or length of accepted draft tokens, as the record has it."""
    steps_per_s: float | None = None
    speculative: bool | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    prefill: bool = False
    """Whether it measures prefill."""


class BenchRecords(Fact):
    """Records of one benchmark."""

    records: tuple[BenchRecord, ...]


class RepeatedRuns(Fact):
    """The same items, run several times: [runs][items], True = passed."""

    runs: tuple[tuple[bool, ...], ...]


def _first(data: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((data[key] for key in keys if key in data), None)


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    figure = number(value)
    return figure == 1 if figure in (0, 1) else None


def _same(answer: Any, gold: Any) -> bool:
    """Equal as numbers where both are, else as words without regard to case and blanks."""
    figures = number(answer), number(gold)
    if None not in figures:
        return figures[0] == figures[1]
    return " ".join(str(answer).split()).casefold() == " ".join(str(gold).split()).casefold()


def _sample(data: Mapping[str, Any]) -> EvalSample | None:
    """One sample; None where the object tells nothing that is scored."""
    held = next((data[k] for k in ("response", "reply") if isinstance(data.get(k), Mapping)), data)
    reply = next(replies_of(held), None)
    finish = reply.finish if reply else finish_of(_first(data, _FINISHES))
    answer, gold = _first(data, _ANSWERS), _first(data, _GOLDS)
    told_answer = any(key in data for key in _ANSWERS)
    given = answer is not None and str(answer).strip() != ""
    correct = next((t for k in _VERDICTS if (t := _truth(data.get(k))) is not None), None)
    if correct is None and gold is not None and told_answer:
        correct = given and _same(answer, gold)
    tools = data.get("tools", data.get("tool_task"))
    sample = EvalSample(
        correct=correct,
        extractable=given if told_answer else (True if correct else None),
        finish=finish,
        thought=_thought(data, reply),
        uses_tools=None if tools is None else bool(tools),
    )
    known = (sample.correct, sample.finish, sample.thought)
    return None if known == (None, None, None) else sample


def _thought(data: Mapping[str, Any], reply: Reply | None) -> bool | None:
    usages = (usage_of(data), usage_of(mapping(data.get("usage"))))
    spent = [u.reasoning_tokens for u in usages if u.reasoning_tokens is not None]
    chars = count(data.get("reasoning_chars"))
    held = [data[key] for key in _REASONING if key in data]
    if reply is not None:
        spent += [] if reply.usage.reasoning_tokens is None else [reply.usage.reasoning_tokens]
        held += [reply.reasoning] if reply.told_reasoning else []
    text = re.match(r"\s*<think", words(_first(data, ("content", "text", "output", "completion"))))
    if text or any(spent) or chars or any(words(one).strip() for one in held):
        return True
    return False if spent or held or chars == 0 else None


def _tables(text: str) -> list[dict[str, Any]]:
    """Objects of a JSON text, or the rows of a CSV one."""
    try:
        return json_objects(text, *_HOLDERS)
    except UnusableOutput:
        lines = text.strip().splitlines()
    names = {*_ANSWERS, *_GOLDS, *_VERDICTS, *_FINISHES}
    heads = [head.strip().lower() for head in re.split(r"[,;\t|]", lines[0])] if lines else []
    if len(lines) < 2 or len(names.intersection(heads)) < 2:
        raise UnusableOutput("no samples: neither JSON objects nor a table with named columns")
    mark = next(mark for mark in ",;\t|" if mark in lines[0])
    try:
        rows = list(csv.reader(lines[1:], delimiter=mark))
    except csv.Error as error:
        raise UnusableOutput(f"no table: {error}") from error
    return [
        {head: (cell.strip() or None) for head, cell in zip(heads, row, strict=False)}
        for row in rows
    ]


def _samples(reading: Reading) -> Iterable[Fact]:
    samples = tuple(one for data in _tables(reading.text) if (one := _sample(data)) is not None)
    if not samples:
        raise UnusableOutput("no sample with an answer, a verdict or a reason why it ended")
    yield EvalSamples(samples=samples)


def _switch(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or not value.strip():
        return None
    return value.strip().lower() not in _OFF


def _plan(reading: Reading) -> Iterable[Fact]:
    keys = {key.rpartition(".")[2].lower().replace("-", "_"): value
            for key, value in flat_settings(reading.text, reading.format).items()}  # fmt: skip
    thinking = [
        _switch(keys[key])
        for key in ("thinking", "enable_thinking", "think", "reasoning", "reasoning_effort")
        if key in keys
    ]
    plan = EvalPlan(
        thinking=next((one for one in thinking if one is not None), None),
        max_tokens=count(_first(keys, ("max_tokens", "max_completion_tokens", "max_gen_toks"))),
        tools=_switch(keys.get("tools")) if not isinstance(keys.get("tools"), list) else True,
    )
    if plan == EvalPlan():
        raise UnusableOutput("neither thinking nor max_tokens nor tools")
    yield plan


_RATE = r"(?:tok(?:en)?s?_(?:per_)?s(?:ec(?:ond)?s?)?|tps|throughput)"
_STEP_RATE = (
    r"(?:.*_)?steps?_?(?:per_)?s(?:ec(?:ond)?)?|step_rate|.*(?:step_time|ms_per_step|step_ms).*"
)
_KINDS: tuple[tuple[str, str], ...] = (
    ("prefill", rf".*(?:prefill|prompt|input).*{_RATE}"),
    ("tokens_per_s", rf"(?:.*_)?{_RATE}"),
    ("acceptance", r"(?:.*_)?accept\w*|(?:committed_)?tok(?:en)?s_per_step"),
    ("steps_per_s", _STEP_RATE),
    ("prompt_class", r"(?:prompt_)?(?:class|kind|type|category|workload)"),
    ("speculative", r"spec(?:ulat\w*)?(?:_decod\w*|_enabled|_algorithm)?|draft(?:_tokens|er)?"),
)


def _record(data: Mapping[str, Any]) -> BenchRecord | None:
    """One record; None where it holds no speed."""
    found: dict[str, Any] = {}
    for key, value in _leaves(data, depth=0):
        name = re.sub(r"[^a-z0-9/]+", "_", key.lower()).replace("/", "_per_")
        kind = next((kind for kind, regex in _KINDS if re.fullmatch(regex, name)), None)
        if kind is not None and value is not None:
            found.setdefault(kind, value)
    speed = number(found.get("tokens_per_s"))
    if speed is None and number(found.get("prefill")) is None:
        return None
    usage = usage_of({**data, **mapping(data.get("usage"))})
    return BenchRecord(
        prompt_class=words(found.get("prompt_class")) or None,
        tokens_per_s=speed,
        acceptance=number(found.get("acceptance")),
        steps_per_s=number(found.get("steps_per_s")),
        speculative=_speculative(found.get("speculative")),
        cached_tokens=usage.cached_tokens,
        prompt_tokens=usage.prompt_tokens,
        prefill=speed is None,
    )


def _speculative(value: Any) -> bool | None:
    if value is None or isinstance(value, dict | list):
        return None
    if isinstance(value, str):
        return value.strip().lower() not in _OFF
    return bool(value)


def _leaves(data: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and depth < 4:
            yield from _leaves(value, depth + 1)
        elif len(str(key)) <= 60:
            yield str(key), value


def _bench(reading: Reading) -> Iterable[Fact]:
    try:
        objects = json_objects(reading.text, *_HOLDERS)
    except UnusableOutput:
        objects = [flat_settings(reading.text, reading.format)]
    records = tuple(one for data in objects if (one := _record(data)) is not None)
    if not records:
        raise UnusableOutput("no speed in tokens per second")
    yield BenchRecords(records=records)


def _runs(reading: Reading) -> Iterable[Fact]:
    yield RepeatedRuns(runs=runs_of(reading.text))


_EVAL = r"(?:eval\w*|graded|scored|per[- ]item|harness)"
READERS: tuple[Reader, ...] = (
    Reader("evals.runs", (RepeatedRuns,), _runs, whats=(
        r"(?:.* )?(?:two|three|four|\d+|repeated) (?:\w+ )?runs?\b.*",
        r"(?:per-item )?(?:agreement|repeatability)\b.*",
    )),
    Reader("evals.plan", (EvalPlan,), _plan,
        whats=(rf"(?:{_EVAL} )(?:plan|config\w*|settings|request)\b.*",),
        paths=(r"(?:.*/)?[^/]*eval[^/]*(?:plan|config)[^/]*\.(?:json|ya?ml|toml)",),
    ),
    Reader("evals.samples", (EvalSamples,), _samples,
        whats=(rf"(?:{_EVAL} )(?:samples?|results?|records?|items?|outputs?|log)\b.*",
               r"samples? of (?:an? |the )?eval\w*.*"),
        paths=(r"(?:.*/)?(?:[^/]*samples|q?eval)[^/]*\.(?:jsonl?|csv|ndjson)",),
    ),
    Reader("evals.bench", (BenchRecords,), _bench,
        whats=(r"bench\w* (?:records?|results?|runs?|rows?|reports?|summary)\b.*",),
        paths=(r"(?:.*/)?[^/]*bench[^/]*\.(?:jsonl?|ndjson)",),
    ),
)  # fmt: skip
"""In the order in which they are tried."""
ASKS: tuple[Ask, ...] = ()
