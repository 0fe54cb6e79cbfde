"""How far an endpoint has come: from no answer at all up to an answer that was generated.

A port that answers is no model that serves, and a server that asks for a key is not down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from sparkserve.checks.check import Check, Judgement, passed
from sparkserve.checks.scene import Scene, evidence
from sparkserve.facts.exchanges import Exchange
from sparkserve.facts.replies import Exchanges
from sparkserve.model.reading import Reading

State = Literal[
    "NO_RESPONSE", "AUTH_REQUIRED", "WRONG_MODEL", "UP", "LIST_OK", "NOT_GENERATING", "GENERATES"
]


class Rung(NamedTuple):
    """One exchange with its place."""

    node: str | None
    exchange: Exchange
    reading: Reading


def state_of(exchanges: Sequence[Exchange]) -> State:
    """The state of an endpoint; ready is GENERATES and nothing less.

    Notes: what was generated outranks everything else; without such a request the highest rung
    that answered counts. Of several requests to generate the last one counts.
    """
    asked = [one for one in exchanges if one.rung == "generate"]
    if asked:
        return _generation(asked[-1])
    listed = [one for one in exchanges if one.rung == "list"]
    if any(one.status == 200 for one in listed):
        return "LIST_OK"
    others = [one for one in exchanges if one.rung != "list"]
    if any(one.status in (401, 403) for one in exchanges):
        return "AUTH_REQUIRED"
    if any(one.status == 200 for one in others):
        return "UP"
    return "NOT_GENERATING" if any(one.status for one in exchanges) else "NO_RESPONSE"


def _generation(one: Exchange) -> State:
    if one.status is None:
        return "NO_RESPONSE" if one.silence else "NOT_GENERATING"
    if one.status == 200:
        return "NOT_GENERATING" if one.generated is False else "GENERATES"
    if one.status in (401, 403):
        return "AUTH_REQUIRED"
    if one.status == 404 and "model" in one.message.lower():
        return "WRONG_MODEL"
    return "NOT_GENERATING"


def _described(one: Exchange) -> str:
    what = f"{one.method} {one.path} {one.status or one.silence or 'answered'}"
    if one.rung == "list" and one.status in (401, 403):
        key = "with its key" if one.keyed else "without a key"
        return f"{what} {key}: list unknown, not down"
    if one.status == 200 and one.generated is False:
        return f"{what}, but nothing was generated"
    if one.message:
        return f"{what} ({one.message[:80]})"
    return what


def _ready(scene: Scene) -> Iterator[Judgement]:
    rungs = [
        Rung(node, exchange, reading)
        for node, fact, reading in scene.seen(Exchanges)
        for exchange in fact.exchanges
        if exchange.rung != "other"
    ]
    if not rungs:
        return
    exchanges = [rung.exchange for rung in rungs]
    state = state_of(exchanges)
    told = "; ".join(_described(one) for one in exchanges[:6])
    asked = [rung for rung in rungs if rung.exchange.rung == "generate"]
    node = (asked or rungs)[-1].node
    if state == "GENERATES":
        yield passed(node, f"{state}: {told}")
        return
    found = Judgement(
        node,
        "fail",
        observed=f"{state}: {told}",
        expected="GENERATES: a request for one token that is answered",
        why=_why(state, asked[-1].exchange if asked else None),
        fix=_FIXES.get(state, ""),
        evidence=evidence([rung.reading for rung in rungs]),
        verdict="NOT_READY",
    )
    if state in ("UP", "LIST_OK") or (state == "AUTH_REQUIRED" and not asked):
        # Nothing says that it does not generate: nobody asked it to.
        yield Judgement(
            node, "unknown", observed=f"{state}: {told}; nothing was asked to be generated",
            severity="info",
        )  # fmt: skip
    elif asked and asked[-1].exchange.status in (400, 413, 422, 429):
        yield Judgement(
            node, "unknown", observed=f"{told}: the request was refused, which tells nothing of "
            "the engine", severity="info",
        )  # fmt: skip
    else:
        yield found


def _why(state: State, asked: Exchange | None) -> str:
    if state == "NOT_GENERATING" and asked is not None and (asked.status or 0) >= 500:
        return f"the server answers, its engine does not: status {asked.status} for a generation"
    if state == "NO_RESPONSE":
        return "nothing listens there yet, or no more; the host itself may be well"
    if state == "AUTH_REQUIRED":
        return "the server is up and wants another key; whether it generates is not known"
    return ""


_FIXES: dict[State, str] = {
    "AUTH_REQUIRED": "send the key that the server was started with",
    "WRONG_MODEL": "ask for the model that GET /v1/models names",
    "NO_RESPONSE": "sparkserve status  # then sparkserve logs of the head",
}
CHECKS: tuple[Check, ...] = (
    Check(
        "SRV.READY", "SRV_READINESS_LADDER", "the endpoint generates", ("verify", "launch"),
        "error", "engine", (Exchanges,), _ready,
        why="process, port, key, model list and generation are five things; a server whose engine "
        "is dead may still say 200 to /health",
        fix="sparkserve logs  # the engine's own error stands in rank 0's log",
        symptom="a monitor says down for a server that wants a key, or up for a dead engine",
        text_only="a running endpoint is asked by launch and verify, not by doctor",
    ),
)  # fmt: skip
