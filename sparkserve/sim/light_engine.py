"""A light engine: SGLang's command line, log and HTTP API without a model.

``python -m sparkserve.sim.light_engine`` takes what ``sglang.launch_server`` takes, so a
launch, its guards and its watcher can be tried on any machine in a second, and told to fail in
chosen ways (``--light-fault``). Two processes per rank as in SGLang: this one serves HTTP, its
child "schedules". Standard library only, for the start to cost next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sparkserve.sim import light_options, light_scheduler
from sparkserve.sim.light_http import Server, Service
from sparkserve.sim.light_log import Log, raw
from sparkserve.sim.light_options import Options

REFUSED = 78
_POLL_S = 0.05


class Engine:
    """The main process of one rank."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.log = Log()
        self.scheduler_pid: int | None = None

    def run(self) -> int:
        """Serve until told to stop; gives the exit status."""
        options = self.options
        if options.has("crash-at-import"):
            return self._crash_at_import()
        self.log.line(f"server_args={_server_args(options)}")
        if options.has("refuse-plugin"):
            return self._refuse()
        signal.signal(signal.SIGQUIT, self._on_sigquit)
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN if options.has("ignore-sigterm") else self._on_sigterm
        )
        self.scheduler_pid, reader = light_scheduler.spawn(options)
        messages = os.fdopen(reader, "rb")
        first = messages.readline()
        if first != light_scheduler.READY:
            return self._start_failed(first)
        service = Service(options)
        server = self._listen(service)
        if server is None:
            return 1
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._announce(service)
        self._exit_later()
        return self._follow_scheduler(messages.readline, service)

    def _crash_at_import(self) -> int:
        raw(
            "Traceback (most recent call last):\n"
            '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
            "ImportError: libcudart.so.13: cannot open shared object file: "
            "No such file or directory\n"
        )
        return 1

    def _refuse(self) -> int:
        reason = "the light engine was told to refuse"
        light_scheduler.report(self.options, role="main", refusal=reason)
        raw(f"sparkserve: FATAL light {reason}\n")
        return REFUSED

    def _listen(self, service: Service) -> Server | None:
        options = self.options
        self.log.line(f"INFO:     Started server process [{os.getpid()}]")
        self.log.line("INFO:     Waiting for application startup.")
        self.log.line("INFO:     Application startup complete.")
        try:
            server = Server(service)
        except OSError as error:
            self.log.line(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
                f"('{options.host}', {options.port}): {(error.strerror or '').lower()}"
            )
            self._kill_scheduler()
            return None
        self.log.line(
            f"INFO:     Uvicorn running on http://{options.host}:{options.port} "
            "(Press CTRL+C to quit)"
        )
        return server

    def _announce(self, service: Service) -> None:
        if self.options.rank > 0:
            service.state = "up"
            return
        time.sleep(self.options.warmup_s)
        self.log.line("The server is fired up and ready to roll!")
        service.state = "up"

    def _exit_later(self) -> None:
        trigger = self.options.value("exit-after-ready")
        if trigger is None:
            return

        def wait_and_exit() -> None:
            if trigger.replace(".", "", 1).isdecimal():
                time.sleep(float(trigger))
            else:
                while not Path(trigger).exists():
                    time.sleep(_POLL_S)
            raw(
                "Traceback (most recent call last):\n"
                "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
            )
            os._exit(1)  # the scheduler dies with us

        threading.Thread(target=wait_and_exit, daemon=True).start()

    def _follow_scheduler(self, next_message: Callable[[], bytes], service: Service) -> int:
        while message := next_message():
            if message == light_scheduler.PEER_LOST:
                service.group_broken.set()
            if message == light_scheduler.PEER_LOST_EXIT:
                self._kill_scheduler()
                return 1
        pid = self.scheduler_pid
        self.log.line(
            f"Subprocess scheduler_0 (pid={pid}) crashed with exit code {self._reap()}. "
            "Triggering SIGQUIT for cleanup..."
        )
        return self._kill_tree()

    def _start_failed(self, message: bytes) -> int:
        if message == light_scheduler.PEER_LOST:
            threading.Event().wait()  # the scheduler hangs, and so do we
        if message == light_scheduler.PEER_LOST_EXIT:
            self._kill_scheduler()
            return 1
        raw(
            "Traceback (most recent call last):\n"
            "RuntimeError: Rank 0 scheduler died during initialization "
            f"(exit code: {self._reap()}). "
            "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
            "Run `dmesg -T | grep -i oom` to check.\n"
        )
        return 1

    def _on_sigquit(self, number: int, frame: FrameType | None) -> None:
        self.log.line("Received sigquit from a child process. It usually means the child failed.")
        self._kill_tree()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> NoReturn:
        self.log.line(
            f"SIGTERM received. signum={number} frame=None. Draining requests and shutting down..."
        )
        self._kill_scheduler()
        os._exit(0)

    def _kill_scheduler(self) -> None:
        if self.scheduler_pid is None or self.options.has("orphan"):
            return
        os.kill(self.scheduler_pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> int:
        """Wait for the scheduler's end; gives its exit code (a signal's number is negative)."""
        assert self.scheduler_pid is not None
        # an unreaped child keeps its number, so the signal above can hit nobody else
        _, status = os.waitpid(self.scheduler_pid, 0)
        self.scheduler_pid = None
        return os.waitstatus_to_exitcode(status)

    def _kill_tree(self) -> NoReturn:
        """End as SGLang does when a child failed: by killing itself, so the status is -9."""
        self._kill_scheduler()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(1)


def _server_args(options: Options) -> dict[str, object]:
    """Settings as logged: SGLang 0.5.23 shows the API key, sparkserve's plugin stars it out."""
    plugged = light_scheduler.SPEC_VARIABLE in os.environ
    return {
        "model_path": options.model_path,
        "tokenizer_path": options.model_path,
        "host": options.host,
        "port": options.port,
        "served_model_name": options.served_name,
        "tp_size": options.tp,
        "nnodes": options.nodes,
        "node_rank": options.rank,
        "context_length": options.context_tokens,
        "max_total_tokens": options.kv_tokens,
        "api_key": "***" if plugged and options.api_key else options.api_key,
    }


def main(argv: list[str]) -> int:
    """Run one rank."""
    return Engine(light_options.parse(argv)).run()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # threads that hang on purpose must not keep the process alive
    os._exit(status)
