"""A launch: the observer that suits the console, and what is said once it serves."""

from __future__ import annotations

import json
import shlex
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

from sparkserve.model.event import Event, Observer
from sparkserve.model.node_state import RunStatus
from sparkserve.model.record import Endpoint, RunRecord
from sparkserve.report.console import Answer, Console
from sparkserve.report.status_view import rank_table
from sparkserve.report.text import Line, Span, line, one_line
from sparkserve.units import format_duration

_WILDCARDS = ("0.0.0.0", "::")


class Watching(Observer, AbstractContextManager["Watching"], Protocol):
    """An Observer with a beginning and an end."""


class JsonEvents:
    """An Observer that writes every event as one line of NDJSON."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> JsonEvents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def event(self, event: Event) -> None:
        """Take one event."""
        self._console.record(event.model_dump_json())


def observer_for(console: Console) -> Watching:
    """The view of a running launch: live, plain lines, or NDJSON."""
    if console.mode == "json":
        return JsonEvents(console)
    if console.is_live:
        from sparkserve.report.launch_live import LiveLaunch

        return LiveLaunch(console)
    from sparkserve.report.launch_plain import PlainLaunch

    return PlainLaunch(console)


def result_event(at: datetime, run_id: str | None, data: dict[str, Any]) -> Event:
    """The last line of a launch's NDJSON; ``data.ok`` says how it came out."""
    message = "ok" if data["ok"] else "failed"
    return Event(at=at, kind="result", run_id=run_id, message=message, data=data)


def finish(console: Console, at: datetime, answer: Answer, run_id: str | None = None) -> None:
    """Write a command's result: with NDJSON as the last event, else as the console's mode says."""
    if console.mode == "json":
        console.record(result_event(at, run_id, dict(answer.data)).model_dump_json())
    else:
        console.answer(answer)


def served_answer(record: RunRecord, status: RunStatus | None, *, width: int | None) -> Answer:
    """What a user needs once a run serves: where, what it answered, how to go on.

    status: the run's own word right after the launch; None where it could not be asked.
    """
    endpoint = record.endpoint
    url = endpoint.url if endpoint else ""
    model = record.profile.model.served_name
    head = record.cluster.nodes[0]
    away = endpoint is not None and endpoint.reachable_from == "head" and not head.is_local
    where = f" on {head.name}" if away else ""
    lines = [
        line(Span("serving ", "good"), Span(model, "bold"), " at ", Span(url, "bold"), where),
        *_facts(record, status),
    ]
    if status is not None:
        lines += [line(), *rank_table(status, width=width)]
    lines += [line(), *_next_steps(record)]
    data = {
        "ok": True,
        "record": record.model_dump(mode="json"),
        "status": status.model_dump(mode="json") if status else None,
        "warnings": [text for text in (exposure_warning(record),) if text is not None],
    }
    return Answer(lines, data, (url,))


def exposure_warning(record: RunRecord) -> str | None:
    """What to say about an endpoint that the whole network can reach; None where it cannot."""
    host = record.profile.serving.host
    if record.profile.serving.is_loopback:
        return None
    where = "every interface" if host in _WILDCARDS else host
    return (
        f"the endpoint listens on {where} of {record.cluster.nodes[0].name}: anybody who reaches "
        "it and has the key can use it"
    )


def _facts(record: RunRecord, status: RunStatus | None) -> list[Line]:
    rows = None
    if status is not None:
        counted = [r.progress.engram_rows for r in status.ranks if r.progress]
        known = [count for count in counted if count is not None]
        rows = sum(known) if known else None
    ready_s = record.timings_s.get("ready")
    speed = record.answer_tokens_per_s
    pairs = [
        ("run", record.run_id),
        ("asked", one_line(record.profile.gate.prompt)),
        ("answered", one_line(record.answer or "")),
        ("ready in", format_duration(ready_s) if ready_s is not None else ""),
        ("speed", f"{speed:.1f} tok/s, first answer, prefill included" if speed else ""),
        ("Engram rows", f"{rows:,} read" if rows is not None else ""),
    ]
    return [line("  ", Span(f"{label:<12}", "dim"), text) for label, text in pairs if text]


def _next_steps(record: RunRecord) -> list[Line]:
    endpoint = record.endpoint
    steps = [("chat", "sparkserve chat 'Hello'")]
    if endpoint is not None:
        steps += _curl(record, endpoint)
    steps += [("watch", "sparkserve status"), ("stop", f"sparkserve stop {record.run_id}")]
    return [line("  ", Span(f"{label:<12}", "dim"), command) for label, command in steps]


def _curl(record: RunRecord, endpoint: Endpoint) -> list[tuple[str, str]]:
    """A command that works when pasted, with a tunnel first where the endpoint is not here."""
    head = record.cluster.nodes[0]
    steps: list[tuple[str, str]] = []
    if endpoint.reachable_from == "head" and not head.is_local:
        port = record.profile.serving.port
        user = f"{head.user}@" if head.user else ""
        ssh_port = f" -p {head.port}" if head.port != 22 else ""
        tunnel = f"ssh -N -L {port}:127.0.0.1:{port}{ssh_port}"
        steps.append(("tunnel", f"{tunnel} {user}{head.host}"))
    message = {"role": "user", "content": "Hello"}
    body = json.dumps({"model": endpoint.model, "messages": [message]}, separators=(",", ":"))
    parts = [f"curl {endpoint.url}/chat/completions", "-H 'Content-Type: application/json'"]
    key_file = record.profile.serving.api_key_file
    if key_file is not None:
        parts.append(f'-H "Authorization: Bearer $(cat {_path(key_file)})"')
    parts.append(f"-d {shlex.quote(body)}")
    *first, last = parts
    folded = [f"{part} \\" for part in first] + [last]
    steps.append(("curl", folded[0]))
    return steps + [("", f"  {part}") for part in folded[1:]]


def _path(text: str) -> str:
    """A path for a shell that still expands its ``~``."""
    return f"~/{shlex.quote(text[2:])}" if text.startswith("~/") else shlex.quote(text)
