"""One comparison: the same model from memory and from files, and once with a wrong row."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.cases import checks, with_rows
from tests.gpu.place import Place
from tests.gpu.results import Results
from tests.gpu.servers import (
    Answer,
    Case,
    Server,
    ServerFailed,
    fingerprint,
    first_difference,
    greatest_difference,
)

_PORTS_PER_SERVER = 20
_STEP = 3
"""Output token whose own four-gram row is corrupted: it is read in a decode step alone."""


@dataclass
class Comparison:
    """Starts its servers side by side and keeps what they answered."""

    stage: str
    place: Place
    results: Results
    first_port: int
    deadline: float
    """On the monotonic clock: after this nothing is waited for."""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, cases: tuple[Case, ...], *, corrupt_dir: Path | None) -> None:
        """Run all cases, then judge them against the first.

        corrupt_dir: shards to spoil one row of, for one more server; None = no such server.
        """
        jobs = [self._background(case) for case in cases[1:]]
        self._serve(cases[0])
        if corrupt_dir is not None:
            jobs.append(self._corrupted(cases, corrupt_dir))
        for job in jobs:
            job.join()
        reference = self.answers.get(cases[0].name)
        for case in cases:
            self._judge(case, cases[0], reference)

    def _background(self, case: Case, then: Callable[[], None] | None = None) -> threading.Thread:
        def work() -> None:
            self._serve(case)
            if then is not None:
                then()

        thread = threading.Thread(target=work, name=case.name)
        thread.start()
        return thread

    def _serve(self, case: Case) -> None:
        # One port for each rank and one for their meeting, with room for what SGLang adds.
        port = self.first_port + _PORTS_PER_SERVER * next(self._numbers)
        server = None
        try:
            server = Server(self.place, case, port)
            healthy_s = server.wait_healthy(self.deadline)
            began = time.monotonic()
            answers = server.ask(self.deadline)
            self.answers[case.name] = answers
            self.results.note(
                self.stage,
                case.name,
                healthy_s=healthy_s,
                asked_s=round(time.monotonic() - began, 1),
                fingerprint=fingerprint(answers),
                first=answers[0].logprobs[:2],
                answers=[[answer.tokens, answer.logprobs] for answer in answers],
            )
            self.results.note(self.stage, f"{case.name} chat", text=server.chat())
            # The statistics are written once a second.
            time.sleep(1.5)
            self._keep(server)
        except Exception as error:  # one server's end must not cost the others' results
            kind = "" if isinstance(error, ServerFailed) else f"{type(error).__name__}: "
            self.results.note(self.stage, f"{case.name} failed", why=f"{kind}{error}"[-3000:])
        finally:
            if server is not None:
                server.stop()

    def _keep(self, server: Server) -> None:
        """What the server wrote down about itself, and what follows from it."""
        case, statistics = server.case, server.statistics()
        layers = [layer for file in statistics for layer in file["layers"]]
        lines = server.telling_lines()
        self.results.note(self.stage, f"{case.name} log", lines=lines, layers=layers)
        if "--cuda-graph-bs-decode" in case.arguments:
            held = "cuda graph: True" in server.log
            self.results.expect(self.stage, f"{case.name} decodes in CUDA graphs", holds=held)
        if case.adapters:
            serving = [report for report in server.reports() if report["role"] == "scheduler"]
            found = [(report["status"], [each["name"] for each in report["adapters"]])
                     for report in serving]  # fmt: skip
            wanted = [("installed", [*case.adapters])] * case.ranks
            holds = found == wanted and len(layers) == 2 * case.ranks
            says = f"{case.name}: every rank reports its adapters and reads two layers from files"
            self.results.expect(self.stage, says, holds=holds, detail=str(found))
        if checks(case):
            counts = [(layer["checked_rows"], layer["differing_rows"]) for layer in layers]
            holds = bool(counts) and all(rows > 0 and bad == 0 for rows, bad in counts)
            says = f"{case.name}: no row fetched ahead differs from a second lookup"
            self.results.expect(self.stage, says, holds=holds, detail=f"(rows, bad) {counts}")

    def _corrupted(self, cases: tuple[Case, ...], shards: Path) -> threading.Thread:
        """Spoil one row that the reference read in a decode step, and serve from that."""
        name = f"{self.stage}-corrupted"
        says = "one corrupted row changes the answer at the decode step that reads it, no earlier"
        reference = self.answers.get(cases[0].name)
        if reference is None:
            self.results.missing(self.stage, says, f"{cases[0].name} gave no answers")
            return self._background_nothing()
        folder = self.place.models / "corrupted" / self.stage
        shutil.copytree(shards, folder, dirs_exist_ok=True)
        layer, row = decode_row(cases[0].checkpoint, reference)
        flip_signs(folder, layer, row)
        self.results.note(self.stage, "corrupted row", layer=layer, row=row)

        def judge() -> None:
            if name not in self.answers:
                self.results.missing(self.stage, says, f"{name} gave no answers")
                return
            at = first_difference(self.answers[name], reference)
            # The token that was read at this position decides the next one.
            holds = at == (0, _STEP + 1)
            self.results.expect(self.stage, says, holds=holds, detail=f"first difference {at}")

        return self._background(with_rows(cases[0], name, folder), judge)

    @staticmethod
    def _background_nothing() -> threading.Thread:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        return thread

    def _judge(self, case: Case, first: Case, reference: list[Answer] | None) -> None:
        answers = self.answers.get(case.name)
        if case is first:
            says = f"{case.name} serves finite log-probabilities"
        else:
            says = f"{case.name} gives every token and log-probability of {first.name}"
        if answers is None or reference is None:
            lacking = case.name if answers is None else first.name
            self.results.missing(self.stage, says, f"{lacking} gave no answers")
            return
        if case is first:
            finite = all(value > -1e9 for answer in answers for value in answer.logprobs)
            self.results.expect(self.stage, says, holds=finite, detail=fingerprint(answers))
            return
        at = first_difference(answers, reference)
        greatest = greatest_difference(answers, reference)
        detail = "equal to the last bit" if at is None else f"from {at} on, up to {greatest:.3g}"
        self.results.expect(self.stage, says, holds=at is None, detail=detail)


def decode_row(checkpoint: Path, reference: list[Answer]) -> tuple[int, int]:
    """(layer, row id) of a four-gram row that the first prompt reads in one decode step only.

    Raises:
        ValueError: every row of that step is read elsewhere too.
    """
    from tokenizers import Tokenizer

    from sparkserve.engram.config import EngramConfig
    from sparkserve.engram.hashing import RowHasher
    from sparkserve.engram.token_map import compressed_ids

    described = json.loads((checkpoint / "config.json").read_text())
    config = EngramConfig.from_config(described)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    hasher = RowHasher.of(config, compressed_ids(tokenizer, config))
    first = reference[0]
    text = [*first.prompt, *first.tokens]
    step = len(first.prompt) + _STEP
    rows = hasher.hash_text(text)[:, 0]
    for row in rows[step][::-1][: config.n_heads]:
        if int((rows == row).sum()) == 1:
            return config.layer_ids[0], int(row)
    raise ValueError("no row is read at that step alone")


def flip_signs(folder: Path, layer: int, row: int) -> None:
    """Negate all weights of one row of a table that one rank holds whole."""
    from sparkserve.engram.shard import HEADER_BYTES, ShardName, read_header

    path = folder / ShardName(layer, 0, 1).file_name
    header = read_header(path)
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + row * header.row_bytes)
        weights = file.read(header.dim)
        file.seek(HEADER_BYTES + row * header.row_bytes)
        file.write(bytes(byte ^ 0x80 for byte in weights))
        file.flush()
        os.fsync(file.fileno())
