"""``pack`` and ``verify-engram`` on a node: one job file in, one event per line out.

SIGINT and SIGTERM end the job between two chunks; the same call goes on from there.
"""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, TypeVar

from pydantic import ValidationError

from sparkserve.engram.http_source import HttpFolder, Patience
from sparkserve.engram.local_source import LocalFolder
from sparkserve.engram.pack import PackRun
from sparkserve.engram.pack_error import PackError
from sparkserve.engram.reporter import Reporter
from sparkserve.engram.source import Folder
from sparkserve.engram.verify_job import VerifyRun
from sparkserve.errors import ConfigError, ExitCode, SparkserveError
from sparkserve.model.pack import (
    LayerResult,
    PackCode,
    PackDone,
    PackEvent,
    PackFailed,
    PackJob,
    VerifyJob,
)

_LOG = logging.getLogger(__name__)
_TOKEN_LIMIT_BYTES = 4096
_Job = TypeVar("_Job", PackJob, VerifyJob)


def pack(job_file: Path) -> int:
    """Pack as the job says; returns the exit code."""

    def run(reporter: Reporter) -> PackDone:
        job = _read(job_file, PackJob)
        return PackRun(job, open_folder(job.source, job.token_file, reporter), reporter).run()

    return _run(run)


def verify(job_file: Path) -> int:
    """Judge shards as the job says; returns the exit code."""

    def run(reporter: Reporter) -> PackDone:
        job = _read(job_file, VerifyJob)
        folder = None
        if job.source is not None:
            folder = open_folder(job.source, job.token_file, reporter)
        return VerifyRun(job, folder, reporter).run()

    return _run(run)


def open_folder(source: str, token_file: str | None, reporter: Reporter) -> Folder:
    """The checkpoint's folder, wherever it is.

    Raises:
        PackError: there is none, or the token file is not as it must be.
    """
    if source.startswith(("http://", "https://")):
        token = read_token(Path(token_file)) if token_file else None
        return HttpFolder(source, token, Patience(sleep=reporter.sleep))
    if "://" in source:
        raise PackError(
            PackCode.JOB, f"source {source!r} is neither a folder nor an http(s) URL", path=source
        )
    return LocalFolder(Path(source))


def read_token(path: Path) -> str:
    """The bearer token in a file that nobody else can read.

    Raises:
        PackError: no such file, readable by others, empty, or not one word.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_TOKEN_LIMIT_BYTES).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise PackError(
            PackCode.JOB, f"the token file cannot be read: {error.strerror}", path=path
        ) from error
    if mode & 0o077:
        raise PackError(
            PackCode.JOB,
            f"the token file has mode {mode:04o}, expected 0600",
            path=path,
            hint=f"chmod 600 {path}",
        )
    if not text.isprintable() or not text or " " in text or not text.isascii():
        raise PackError(PackCode.JOB, "the token file holds no token", path=path)
    return text


def _read(path: Path, kind: type[_Job]) -> _Job:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise PackError(
            PackCode.JOB, f"the job cannot be read: {error.strerror}", path=path
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the job"
        raise PackError(PackCode.JOB, f"{place}: {first['msg']}", path=path) from error


def _run(work: Callable[[Reporter], PackDone]) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    voice = _Voice(sys.stdout, stop)
    try:
        voice.send(work(Reporter(voice.send, stop)))
    except (SparkserveError, OSError) as error:
        failed = failure_of(error)
        voice.send(failed)
        return failed.exit_code
    except Exception as error:  # noqa: BLE001 - the caller must learn of a bug as of any failure
        _LOG.exception("packing failed")
        message = f"{type(error).__name__}: {error}"
        code = PackCode.BUG
        voice.send(PackFailed(code=code, message=message, exit_code=int(code.exit_code)))
        return int(code.exit_code)
    return int(ExitCode.OK)


def failure_of(error: SparkserveError | OSError) -> PackFailed:
    """The event that a failure is told by; the machine's own refusals are no bugs of ours."""
    if isinstance(error, OSError):
        error = PackError(PackCode.IO, error.strerror or str(error), path=error.filename)
    code, path, offset_bytes = PackCode.IO, getattr(error, "path", None), None
    exit_code = error.exit_code
    layers: tuple[LayerResult, ...] = ()
    reader = None
    if isinstance(error, PackError):
        code, offset_bytes = error.code, error.offset_bytes
        layers, reader = error.layers, error.reader
    elif isinstance(error, ConfigError):
        code = PackCode.JOB
    return PackFailed(
        code=code,
        message=error.message,
        hint=error.hint,
        exit_code=int(exit_code),
        path=path,
        offset_bytes=offset_bytes,
        layers=layers,
        reader=reader,
    )


class _Voice:
    """One event per line; where nobody listens any more, the job shall stop."""

    def __init__(self, out: TextIO, stop: threading.Event) -> None:
        self._out = out
        self._stop = stop

    def send(self, event: PackEvent) -> None:
        """Say it at once."""
        try:
            self._out.write(event.model_dump_json() + "\n")
            self._out.flush()
        except BrokenPipeError:
            self._stop.set()
            # What is still to be said must not fail again, nor when Python ends.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._out.fileno())
            os.close(nowhere)
