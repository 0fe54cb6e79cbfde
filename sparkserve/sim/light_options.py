"""Command line of the light engine: SGLang's flags, and the faults it is told to have.

Flags of SGLang that it has no use for are accepted and ignored. Must not know what the
answers are or how ranks meet.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FAULTS = {
    "crash-at-import": False,
    "crash-while-loading": False,
    "exit-after-ready": True,
    "hang-in-rendezvous": False,
    "hang-while-loading": False,
    "garbage-answer": False,
    "empty-answer": False,
    "refuse-plugin": False,
    "wrong-report": False,
    "no-report": False,
    "slow-load": True,
    "health-500": False,
    "ignore-sigterm": False,
    "orphan": False,
}
"""Name of each fault -> whether it takes a value (seconds, or a file for exit-after-ready)."""


@dataclass(frozen=True)
class Fault:
    """One fault as written: ``NAME``, ``NAME=VALUE``, ``NAME@RANK`` or ``NAME=VALUE@RANK``."""

    name: str
    value: str | None
    rank: int | None
    """None = every rank."""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read one fault.

        Raises:
            argparse.ArgumentTypeError: unknown, or a value is missing or too many.
        """
        rest, at, rank = text.rpartition("@")
        if not at or not rank.isdecimal():
            rest, rank = text, ""
        name, equals, value = rest.partition("=")
        if name not in FAULTS:
            raise argparse.ArgumentTypeError(f"unknown fault {name!r}, one of: {', '.join(FAULTS)}")
        if FAULTS[name] != bool(equals):
            raise argparse.ArgumentTypeError(
                f"fault {name} {'needs' if FAULTS[name] else 'takes no'} value: {text!r}"
            )
        return cls(name, value if equals else None, int(rank) if rank else None)


@dataclass(frozen=True)
class Options:
    """What one rank of the light engine was told."""

    argv: tuple[str, ...]
    model_path: str
    served_name: str
    host: str
    port: int
    tp: int
    nodes: int
    rank: int
    dist_address: tuple[str, int] | None
    api_key: str | None
    context_tokens: int
    kv_tokens: int
    max_running_requests: int
    metrics: bool
    unlogged: tuple[str, ...]
    """Beginnings of paths whose questions are no lines of the log."""
    faults: tuple[Fault, ...]
    answers: Path | None
    token_s: float
    """Pause before each generated token."""
    load_s: float
    warmup_s: float
    peer_loss: Literal["hang", "exit"]
    peer_loss_delay_s: float

    def has(self, name: str) -> bool:
        """Whether this rank has the fault."""
        return any(fault.name == name for fault in self._own())

    def value(self, name: str) -> str | None:
        """Value of a fault of this rank; None where it does not have it."""
        return next((fault.value for fault in self._own() if fault.name == name), None)

    def _own(self) -> list[Fault]:
        return [fault for fault in self.faults if fault.rank in (None, self.rank)]


def parse(argv: Sequence[str]) -> Options:
    """Read a command line of SGLang's, with the YAML file of ``--config`` below it.

    Raises:
        SystemExit: 2, as argparse does, with the mistake on stderr.
    """
    parser = _parser()
    given, _ = parser.parse_known_args(argv)
    if given.config is not None:
        # the command line wins, so the file's options come first
        given, _ = parser.parse_known_args([*_config_argv(Path(given.config)), *argv])
    if not 0 <= given.node_rank < given.nnodes:
        parser.error(f"node rank {given.node_rank} of {given.nnodes} nodes")
    if given.nnodes > 1 and given.dist_init_addr is None:
        parser.error("--nnodes > 1 needs --dist-init-addr")
    return Options(
        argv=tuple(argv),
        model_path=given.model_path,
        served_name=given.served_model_name or given.model_path,
        host=given.host,
        port=given.port,
        tp=given.tp_size,
        nodes=given.nnodes,
        rank=given.node_rank,
        dist_address=_address(given.dist_init_addr) if given.dist_init_addr else None,
        api_key=given.api_key,
        context_tokens=given.context_length,
        kv_tokens=given.max_total_tokens,
        max_running_requests=given.max_running_requests,
        metrics=given.enable_metrics,
        unlogged=tuple(given.uvicorn_access_log_exclude_prefixes),
        faults=tuple(given.light_fault),
        answers=given.light_answers,
        token_s=given.light_token_seconds,
        load_s=given.light_load_seconds,
        warmup_s=given.light_warmup_seconds,
        peer_loss=given.light_peer_loss,
        peer_loss_delay_s=given.light_peer_loss_delay,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="light_engine", allow_abbrev=False)
    add = parser.add_argument
    add("--model-path", "--model", required=True)
    add("--served-model-name")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    add("--nnodes", type=int, default=1)
    add("--node-rank", type=int, default=0)
    add("--dist-init-addr", "--nccl-init-addr")
    add("--api-key")
    add("--config")
    add("--context-length", type=int, default=131_072)
    add("--max-total-tokens", type=int, default=1_048_576)
    add("--max-running-requests", type=int, default=64)
    add("--enable-metrics", action="store_true")
    add("--uvicorn-access-log-exclude-prefixes", nargs="*", default=[])
    add("--light-fault", type=Fault.parse, action="append", default=[], metavar="NAME[=V][@RANK]")
    add("--light-answers", type=Path, help='JSON list of {"contains": ..., "answer": ...}')
    add("--light-token-seconds", type=float, default=0.0)
    add("--light-load-seconds", type=float, default=0.0)
    add("--light-warmup-seconds", type=float, default=0.0)
    add("--light-peer-loss", choices=("hang", "exit"), default="hang")
    add("--light-peer-loss-delay", type=float, default=0.0)
    return parser


def _config_argv(path: Path) -> list[str]:
    """Options of a YAML file of plain ``key: value`` lines, as argv."""
    argv: list[str] = []
    for line in path.read_text().splitlines():
        key, colon, text = line.partition(":")
        if not colon or line.lstrip().startswith("#"):
            continue
        value = text.strip()
        if value.startswith('"'):
            value = str(json.loads(value))
        elif value.startswith("'"):
            value = value[1:-1]
        flag = "--" + key.strip().replace("_", "-")
        if value != "false":
            argv += [flag] if value == "true" else [f"{flag}={value}"]
    return argv


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
