"""What logs of engines and containers say: the cause, its consequences, and what lines prove."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sparkserve.checks.check import Check, Judgement
from sparkserve.checks.log_figures import FIGURES
from sparkserve.checks.log_view import Log, View, clock, look
from sparkserve.checks.scene import Scene
from sparkserve.engine.patterns import Pattern
from sparkserve.engine.watcher import PATTERNS, Fault, earliest
from sparkserve.facts.container_kinds import Containers
from sparkserve.facts.logs import EngineLog
from sparkserve.facts.samples import TIME_COLUMNS, MemorySamples, ProgressSamples
from sparkserve.facts.wanted import Wanted
from sparkserve.model.vigil import first_stop

TEXT_ONLY = (
    "launch and the guards follow the logs of their own runs; doctor reads those it is given"
)
_OWN = ("NET_RING_TREE", "ENG_LOCKED_WORKSPACE", "ENG_JIT_MIDSERVE", "SRV_REASONING_PARSER_INIT")
"""Codes that a line proves and that have a check of their own here."""
_FIGURES = ("ENG_GRAPH_CAPTURE_FAILED", "ENG_GARBLED_FROM_DRIFT")
"""Codes that a line proves and that a check with more than the line tells."""
_ENDS_BY_TIMEOUT = ("ENG_JIT_MIDSERVE",)
"""Codes of a slow phase: an error where a collective of the same logs timed out."""
_LINES = 6


def _short(line: str, limit: int = 200) -> str:
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _quoted(view: View, faults: Sequence[Fault]) -> tuple[str, ...]:
    return tuple(f"{view.name(fault)}: {_short(fault.line.strip())}" for fault in faults[:_LINES])


def _followers(view: View, cause: Fault) -> list[Fault]:
    """What other ranks said because of the cause."""
    return [
        fault
        for fault in view.watcher.open()
        if fault.rank != cause.rank
        and not fault.pattern.lasting
        and (fault.pattern.weight == "consequence" or fault.pattern.yields)
    ]


def _first_error(scene: Scene) -> Iterator[Judgement]:
    view = look(scene)
    cause = view.watcher.cause()
    if cause is None or cause.is_mild:
        return
    if cause.pattern.weight == "consequence":
        if cause.pattern.name != "peer-lost":
            # Healthy processes print such lines too, with other words in them.
            return
        yield Judgement(
            view.log_of(cause).place, "unknown", severity="warning",
            observed=f"{view.name(cause)} says only that it lost another rank{clock(cause)}",
            fix="look at the logs of the other ranks: the earliest error over all of them counts",
            evidence=_quoted(view, [cause]),
        )  # fmt: skip
        return
    followers = _followers(view, cause)
    # A cause with a code is told by the check of that code, which knows more than this line.
    if not followers and cause.pattern.codes and not _only_logs(scene):
        return
    if not followers and cause.pattern.proves:
        return
    said = "; ".join(f"{view.name(f)}{clock(f)}: {_short(f.line.strip(), 90)}" for f in followers)
    many = "1 later line is a consequence"
    if len(followers) > 1:
        many = f"{len(followers)} later lines are consequences"
    told = f"; {many} ({said})" if followers else ""
    yield Judgement(
        view.log_of(cause).place, "fail",
        observed=f"root cause: {view.name(cause)}{clock(cause)}: {cause.meaning}{told}",
        expected="no error that ends a rank",
        why=f"the earliest error over all ranks is the cause: {_short(cause.line.strip())}",
        fix=cause.pattern.fix,
        evidence=_quoted(view, [cause, *followers]),
    )  # fmt: skip


def _only_logs(scene: Scene) -> bool:
    """Whether nothing but logs was read, so that no other check can tell more."""
    return not any(o.kind not in (EngineLog, Wanted) for o in scene.observations)


def _proved(codes: tuple[str, ...] | None) -> Callable[[Scene], Iterator[Judgement]]:
    """Judge by lines that prove one of the codes; None = every code without a check of its own."""

    def judge(scene: Scene) -> Iterator[Judgement]:
        view = look(scene)
        found: dict[tuple[int, str], list[Fault]] = {}
        for fault in view.watcher.open():
            code = fault.pattern.proves
            wanted = code in codes if codes else code not in (*_OWN, *_FIGURES)
            if code and wanted and (fault.pattern.lasting or not fault.is_mild):
                found.setdefault((fault.rank, code), []).append(fault)
        for (_, code), faults in found.items():
            meanings = dict.fromkeys(fault.meaning for fault in faults)
            late = code in _ENDS_BY_TIMEOUT and any(
                fault.pattern.name == "collective-timeout" for fault in view.watcher.open()
            )
            if late:
                meanings["a collective of the ranks timed out on it"] = None
            yield Judgement(
                view.log_of(faults[0]).place, "fail", code=code,
                severity="error" if late else None,
                observed=f"{view.name(faults[0])}{clock(faults[0])}: {'; '.join(meanings)}",
                expected="no such line",
                fix=faults[0].pattern.fix,
                evidence=_quoted(view, faults),
            )  # fmt: skip

    return judge


def _never_joined(scene: Scene) -> Iterator[Judgement]:
    view = look(scene)
    waiting = [f for f in view.watcher.open() if "ENG_RANK_NEVER_JOINED" in f.pattern.codes]
    if not waiting:
        return
    cause = view.watcher.cause()
    other = cause if cause is not None and cause.rank != waiting[0].rank else None
    place = view.log_of(other).place if other else None
    dead = [
        (box_place, box)
        for box_place, fact in scene.each(Containers)
        for box in fact.containers
        if box.exit_code and (other is None or scene.same_place(box_place, place) or not place)
    ]
    exits = [f"its container {b.status or 'ended'} with exit code {b.exit_code}" for _, b in dead]
    place = place or next((where for where, _ in dead), None)
    told = [waiting[0].meaning.partition(":")[0]]
    if other is not None:
        told.append(f"root cause from {view.name(other)}: {_short(other.line.strip())}")
    yield Judgement(
        place or view.log_of(waiting[0]).place, "fail",
        observed="; ".join([*told, *exits]), expected="every rank joins",
        why=other.meaning if other else "the missing rank's log is not here",
        fix=(other.pattern.fix if other else "") or waiting[0].pattern.fix,
        evidence=_quoted(view, [*([other] if other else []), *waiting]),
    )  # fmt: skip


def _graphs(scene: Scene) -> Iterator[Judgement]:
    view = look(scene)
    failed = [f for f in view.watcher.open() if f.pattern.name == "graph-capture"]
    if not failed:
        return
    cause = earliest(failed)
    place = view.log_of(cause).place
    parts = [f"root cause: {view.name(cause)}: {cause.meaning}"]
    followers = _followers(view, cause)
    parts += [f"{name} is a consequence" for name in dict.fromkeys(map(view.name, followers))]
    for where, samples in scene.each(MemorySamples):
        if where is not None and place is not None and not scene.same_place(where, place):
            continue
        if stop := first_stop(samples.available_gib, samples.period_s or 2.0):
            parts.append(
                f"the memory guard would have fired at {samples.available_gib[stop[0]]:.2f} GiB"
                f" ({stop[1]})"
            )
    yield Judgement(
        place, "fail", observed="; ".join(parts), expected="all graphs captured",
        fix=cause.pattern.fix, evidence=_quoted(view, [cause, *followers]),
    )  # fmt: skip


def _silence_s(scene: Scene, log: Log) -> float | None:
    """How long a log's newest line is the newest, by its note or by samples of its rank."""
    if log.quiet_s is not None:
        return log.quiet_s
    samples = scene.near(log.place, ProgressSamples)
    lines = samples.column("log") if samples is not None else None
    times = samples.column(*TIME_COLUMNS) if samples is not None else None
    if lines is None or times is None or len(set(lines)) > 1:
        return None
    return times[-1] - times[0]


def _stalled(scene: Scene) -> Iterator[Judgement]:
    view = look(scene)
    for number, log in enumerate(view.logs):
        silence_s = _silence_s(scene, log)
        stall = view.watcher.stall(number, silence_s) if silence_s is not None else None
        if stall is not None and "NET_SGLANG_HOST_IP" in stall.pattern.codes:
            yield Judgement(
                log.place, "fail",
                observed=f"INIT_STALL: for {silence_s:.0f} s the newest line is "
                f"{_short(stall.line.strip(), 120)}",
                expected=f"another line within {stall.pattern.stall_s:.0f} s",
                why=stall.meaning, fix=stall.pattern.fix, evidence=_quoted(view, [stall]),
            )  # fmt: skip


def _pattern(name: str) -> Pattern:
    return next(pattern for pattern in PATTERNS if pattern.name == name)


def _also() -> tuple[str, ...]:
    others = {pattern.proves for pattern in PATTERNS} - {*_OWN, *_FIGURES, None}
    return tuple(sorted(code for code in others if code is not None))


_NEEDS = (EngineLog,)
CHECKS: tuple[Check, ...] = (
    Check(
        "LOG.FIRST_ERROR", "LOG_FIRST_ERROR_WINS", "The first error over all ranks",
        ("watch", "launch"), "error", "engine", _NEEDS, _first_error,
        why="errors of NCCL, gloo and TCPStore on the other ranks only say that one rank is gone",
        fix="mend what the earliest error names; leave the other ranks' errors alone",
        symptom="Every rank ends with another error, most of them about connections.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.KNOWN_LINE", "NET_IFNAME_ABSENT", "Lines that name a known fault",
        ("watch", "launch"), "error", "engine", _NEEDS, _proved(None),
        why="this line is printed for one reason only",
        fix="see the fault's own check",
        symptom="The engine ends, and one line of its log names a fault of the node or the image.",
        also=_also(), text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.HOST_IP", "NET_SGLANG_HOST_IP", "The ranks meet",
        ("watch", "launch"), "error", "hardware", _NEEDS, _stalled,
        why=_pattern("allreduce-across-nodes").meaning,
        fix=_pattern("allreduce-across-nodes").fix,
        symptom="The start hangs for ever after 'CustomAllreduce is disabled', without an error.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.RING_TREE", "NET_RING_TREE", "NCCL builds no tree over a ring",
        ("watch", "launch"), "error", "hardware", _NEEDS, _proved(("NET_RING_TREE",)),
        why="in a ring without switch two ranks have no cable between them, and stock NCCL "
        "connects them for its trees",
        fix=_pattern("ring-tree").fix,
        symptom="'unhandled system error' with ncclTransportTreeConnect after all rings connected.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.WORKSPACE", "ENG_LOCKED_WORKSPACE", "Kernels find room in their workspace",
        ("watch",), "error", "engine", _NEEDS, _proved(("ENG_LOCKED_WORKSPACE",)),
        why="the workspace is sized by the warm-up and locked; a larger batch ends the engine",
        fix=_pattern("locked-workspace").fix,
        symptom="'Workspace is locked but allocation ... requires' at the first long prompt.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.JIT", "ENG_JIT_MIDSERVE", "No kernel is compiled while serving",
        ("watch",), "warning", "engine", _NEEDS, _proved(("ENG_JIT_MIDSERVE",)),
        why="one rank compiles for seconds to minutes while the others wait in a collective and "
        "may time out",
        fix=_pattern("jit-while-serving").fix,
        symptom="A request takes minutes once, or the ranks end with a collective's time-out.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.NEVER_JOINED", "ENG_RANK_NEVER_JOINED", "Every rank joins",
        ("watch", "launch"), "error", "engine", _NEEDS, _never_joined,
        why="rank 0 only counts who came; the reason is in the log of the rank that did not",
        fix=_pattern("clients-missing").fix,
        symptom="'DistStoreError: Timed out ... clients joined' on rank 0 after ten minutes.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.GRAPHS", "ENG_GRAPH_CAPTURE_FAILED", "CUDA graphs are captured",
        ("watch", "launch"), "error", "memory", _NEEDS, _graphs,
        why="graph capture needs memory after weights and KV pool took theirs",
        fix=_pattern("graph-capture").fix,
        symptom="'Capture cuda graph failed' minutes into the start; other ranks say that a "
        "connection was closed.",
        text_only=TEXT_ONLY,
    ),
    Check(
        "LOG.REASONING", "SRV_REASONING_PARSER_INIT", "The reasoning parser knows its tokens",
        ("watch", "verify"), "error", "engine", _NEEDS, _proved(("SRV_REASONING_PARSER_INIT",)),
        why="without them the thoughts land in the answer, or the answer in the thoughts",
        fix=_pattern("reasoning-parser").fix,
        symptom="'<think>' appears in answers, or answers are empty.",
        text_only=TEXT_ONLY,
    ),
    *FIGURES,
)  # fmt: skip
