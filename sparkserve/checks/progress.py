"""What samples over time say: does anything move, is it wedged, does one answer never end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.ends import ENDS, shown
from sparkserve.checks.scene import Scene
from sparkserve.engine.host_lines import REPLIES
from sparkserve.facts.gpu_kinds import GpuSamples
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.replies import Replies
from sparkserve.facts.samples import (
    TIME_COLUMNS,
    MetricScrapes,
    ProgressSamples,
    RequestSamples,
    StreamTail,
)
from sparkserve.model.vigil import (
    RUNNING_GAUGES,
    TOKEN_COUNTERS,
    WORK_COUNTERS,
    EngineLook,
    Frozen,
    GpuLook,
    frozen,
    wedge,
)

NO_PROGRESS_S = 300.0
"""A start stands still when no rank's counter moved for so long (case ENG_TIMEOUT_TOO_SHORT)."""
REQUEST_AGE_S = 1800.0
"""A request that runs for longer is a candidate to be ended (case SRV_NO_OUTPUT_CAP)."""
CONTEXT_SHARE = 4
"""Most output without a limit of one's own: this part of the context (case SRV_NO_OUTPUT_CAP)."""
LOOP_TAIL_CHARS = 4096
_TRAFFIC = re.compile(r"byte|rx|tx|read|recv|received")


class _Motion(NamedTuple):
    """What one rank's counters did."""

    place: str | None
    moving: tuple[str, ...]
    """In words, with rates where the counter has one."""
    span_s: float | None


def _motion(place: str | None, samples: ProgressSamples) -> _Motion:
    clock = next((n for n in samples.columns if n in TIME_COLUMNS), None)
    times = samples.column(clock) if clock else None
    span_s = times[-1] - times[0] if times and len(times) > 1 else None
    moving = []
    for number, name in enumerate(samples.columns):
        change = samples.rows[-1][number] - samples.rows[0][number]
        if name == clock or change <= 0:
            continue
        if span_s and _TRAFFIC.search(name):
            verb = "reads" if "read" in name else "sends" if "tx" in name else "receives"
            moving.append(f"{verb} ~{_two_digits(change / span_s / 1e6)} MB/s ({name})")
        else:
            moving.append(f"{name} grew by {change:g}")
    return _Motion(place, tuple(moving), span_s)


def _two_digits(value: float) -> str:
    """Two leading digits: a rate between two samples is no better known."""
    return f"{float(f'{value:.2g}'):g}"


def _no_progress(scene: Scene) -> Iterator[Judgement]:
    motions = [_motion(place, samples) for place, samples in scene.each(ProgressSamples)]
    silences = {place: log.quiet_s for place, log in scene.each(EngineLog) if log.quiet_s}
    if not motions:
        return
    moving = [motion for motion in motions if motion.moving]
    if moving:
        quiet = "".join(
            f"; {place or 'one rank'} logged nothing for {seconds:.0f} s"
            for place, seconds in silences.items()
        )
        yield Judgement(
            moving[0].place, "pass", verdict="WAIT",
            observed="; ".join(f"{m.place or 'one rank'} {', '.join(m.moving)}" for m in moving)
            + quiet,
            expected="some counter of some rank moves",
            why="time-outs measure lack of progress, not age: a long load may log nothing",
            evidence=shown(scene, EngineLog, ProgressSamples),
        )  # fmt: skip
        return
    spans = [motion.span_s for motion in motions if motion.span_s is not None]
    still_s = max([min(spans, default=0.0)], default=0.0)
    if len(spans) == len(motions) and still_s >= NO_PROGRESS_S:
        yield Judgement(
            motions[0].place,
            "fail",
            observed=f"STALL: no counter of any rank moved for {still_s:.0f} s",
            expected=f"some movement within {NO_PROGRESS_S:.0f} s",
            evidence=shown(scene, EngineLog, ProgressSamples),
        )


def _wedged(scene: Scene) -> Iterator[Judgement]:
    busy = scene.each(GpuSamples)
    for place, scrapes in scene.each(MetricScrapes):
        still = frozen(_looks(scrapes))
        if still is None:
            continue
        for gpu_place, samples in busy:
            found = wedge(still, _gpu_looks(samples, still))
            if found is not None:
                yield Judgement(
                    gpu_place or place, "fail", observed=str(found),
                    expected="tokens, or the power of a GPU that computes (30 W or more)",
                    evidence=shown(scene, MetricScrapes, GpuSamples),
                )  # fmt: skip
                break
        else:
            yield from _not_wedged(place, still, busy)


def _not_wedged(
    place: str | None, still: Frozen, busy: list[tuple[str | None, GpuSamples]]
) -> Iterator[Judgement]:
    powers = [s.power_w for _, fact in busy for s in fact.samples if s.power_w is not None]
    if powers:
        yield passed(place, f"no token for {still.for_s:.0f} s, but the GPU draws "
                     f"{max(powers):.1f} W: a long prefill")  # fmt: skip


def _looks(scrapes: MetricScrapes) -> list[EngineLook]:
    """One look per scrape; without a known distance in time there is no telling how long."""
    if scrapes.period_s is None:
        return []
    running = scrapes.values(*RUNNING_GAUGES)
    generated = scrapes.values(*TOKEN_COUNTERS)
    others = [scrapes.values(name) for name in WORK_COUNTERS]
    return [
        EngineLook(
            at_s=number * scrapes.period_s,
            running=running[number] if running else None,
            generated=generated[number] if generated else None,
            others=tuple(values[number] for values in others if values),
        )
        for number in range(len(scrapes.scrapes))
    ]


def _gpu_looks(samples: GpuSamples, still: Frozen) -> list[GpuLook]:
    return [
        GpuLook(
            at_s=still.until_s,
            utilization_percent=sample.utilization_percent,
            power_w=sample.power_w,
        )
        for sample in samples.samples
    ]


def _no_end(scene: Scene) -> Iterator[Judgement]:
    wanted = scene.wanted
    cap = wanted.default_max_tokens
    if cap is None and wanted.context_tokens:
        cap = wanted.context_tokens // CONTEXT_SHARE
    for place, fact in scene.each(RequestSamples):
        for request in fact.requests:
            old = request.age_s is not None and request.age_s > REQUEST_AGE_S
            long = cap is not None and (request.output_tokens or 0) > cap
            if request.finish is not None or not (old or long):
                continue
            told = []
            if request.age_s is not None:
                told.append(f"{request.age_s:g} s old")
            if request.output_tokens is not None:
                told.append(f"{request.output_tokens} output tokens")
            yield Judgement(
                place, "fail",
                observed=f"request {request.id} is an abort candidate: {', '.join(told)}, "
                "not finished",
                expected=f"an end within {REQUEST_AGE_S:.0f} s"
                + (f" and {cap} output tokens" if cap is not None else ""),
                fix=f"abort request {request.id}, and give requests a limit: default_max_tokens",
                evidence=shown(scene, RequestSamples),
            )  # fmt: skip


def looped(text: str) -> str | None:
    """What the end of a text repeats four times or more, word for word; None where nothing.

    Rows of rules, blanks or digits are drawn, not said: what repeats must hold letters.
    """
    found = REPLIES[0].regex.search(text[-LOOP_TAIL_CHARS:])
    if found is None or not re.search(r"[^\W\d_]", found["what"]):
        return None
    return found["what"]


def _said(scene: Scene) -> Iterator[tuple[str | None, str]]:
    """Text of answers, while they come and whole, each with its place."""
    yield from ((place, tail.text) for place, tail in scene.each(StreamTail))
    for place, replies, _ in scene.seen(Replies):
        for answer in replies.answers:
            yield from ((place, text) for text in (answer.reply.reasoning, answer.reply.text))


def _loop(scene: Scene) -> Iterator[Judgement]:
    for place, text in _said(scene):
        unit = looped(text)
        if unit is None:
            if text.strip():
                yield passed(place, "no verbatim loop")
            continue
        count = text[-LOOP_TAIL_CHARS:].count(unit)
        yield Judgement(
            place, "fail", verdict="LOOP",
            observed=f"{count} times in a row: {' '.join(unit.split())[:120]!r}",
            expected="no text that repeats itself word for word",
            evidence=shown(scene, StreamTail, Replies),
        )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    Check(
        "PROGRESS.STALL", "ENG_TIMEOUT_TOO_SHORT", "A start is given up only when nothing moves",
        ("launch",), "error", "engine", (ProgressSamples,), _no_progress,
        why="healthy starts of 36 minutes and silent loads of 9 minutes exist",
        fix="raise the time limit, or measure progress: sparkserve launch does",
        symptom="A launcher ends a start that was still loading.",
        text_only="a launch measures its own progress; samples over minutes are no quick question",
    ),
    Check(
        "PROGRESS.WEDGE", "ENG_SPIN_WEDGE", "A busy GPU computes",
        ("watch",), "error", "engine", (MetricScrapes,), _wedged,
        why="the ranks spin in a collective: the GPU shows 96 % at 20 W, /health answers 200, and "
        "no token comes any more",
        fix="sparkserve stop, then sparkserve launch; use NCCL 2.29.3 or newer",
        symptom="Requests hang for ever while nvidia-smi shows a busy GPU and /health answers 200.",
        text_only="the guard of every run measures it for a minute and more",
    ),
    Check(
        "PROGRESS.NO_END", "SRV_NO_OUTPUT_CAP", "Requests end",
        ("watch",), "error", "engine", (RequestSamples,), _no_end,
        why="a request without a limit of output may run until the context is full, for hours",
        fix="set serving.default_max_tokens to at most a quarter of the context",
        symptom="One request runs for an hour and slows all others.",
        text_only="only an engine that lists its running requests can tell",
    ),
    Check(
        "PROGRESS.LOOP", "SRV_VERBATIM_LOOP", "An answer does not repeat itself",
        ("watch", "eval"), "error", "engine", (StreamTail, Replies), _loop,
        why="a model that repeats a passage four times does not come out of it by itself",
        fix="end the request; set a repetition or presence penalty",
        symptom="The thoughts repeat one sentence until the limit of tokens.",
        text_only="it is judged on the text of an answer while it comes",
    ),
    *ENDS,
)  # fmt: skip
