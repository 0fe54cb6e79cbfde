"""The light engine's second process: meets the other ranks, "loads", reports, then waits.

Like SGLang's scheduler it is a child of the process that serves HTTP, and dies with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from sparkserve.sim import light_ranks
from sparkserve.sim.light_log import ENGINE_VERSION, Log, raw, scheduler_prefix
from sparkserve.sim.light_options import Options

SHARDS = 2
SPEC_VARIABLE = "SPARKSERVE_ENGINE_SPEC"
READY, PEER_LOST, PEER_LOST_EXIT = b"ready\n", b"peer-lost\n", b"peer-lost-exit\n"
"""What it tells the main process through the pipe."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class LoadError(Exception):
    """The simulated crash while weights load."""


def run(options: Options, pipe: int, parent: int) -> NoReturn:
    """Be the scheduler; never returns.

    pipe: descriptor to write to the main process. parent: the main process.
    """
    _become(options, parent)
    log = Log(scheduler_prefix(options.rank, options.tp))
    try:
        group = _init_parallel(options, log)
        _load(options, log)
        group.barrier()
        _make_pool(options, log)
        report(options, role="scheduler")
        os.write(pipe, READY)
        group.wait_for_loss()
        _lose_peer(options, log, pipe)
    except light_ranks.PeerLost:
        _lose_peer(options, log, pipe)
    except (light_ranks.MeetingError, LoadError) as error:
        log.line(
            "Scheduler hit an exception: Traceback (most recent call last):\n"
            f'  File "sglang/srt/managers/scheduler.py", line 6360, in run_scheduler_process\n'
            f"{error}\n"
        )
        os.kill(parent, signal.SIGQUIT)
        os._exit(1)
    threading.Event().wait()
    os._exit(0)


def _become(options: Options, parent: int) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, b"light::sched", 0, 0, 0)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    ignores = options.has("ignore-sigterm")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignores else signal.SIG_DFL)
    if options.has("orphan"):
        os.setsid()
        return
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before we could ask to die with it


def _init_parallel(options: Options, log: Log) -> light_ranks.Group:
    log.line("Init parallel begin.")
    begin = time.monotonic()
    if options.has("hang-in-rendezvous"):
        threading.Event().wait()
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if options.nodes > 1 and interface and not Path("/sys/class/net", interface).exists():
        raise light_ranks.MeetingError(f"RuntimeError: Unable to find address for: {interface}")
    group = light_ranks.meet(options)
    log.line(f"Init parallel ends. elapsed={time.monotonic() - begin:.2f} s")
    log.line("Memory baseline taken. mem usage=0.00 GB")
    return group


def _load(options: Options, log: Log) -> None:
    load_s = float(options.value("slow-load") or options.load_s)
    log.line("Load weight begin. avail mem=110.00 GB")
    for done in range(SHARDS + 1):
        log.shards(done, SHARDS)
        if done == 1 and options.has("hang-while-loading"):
            raw("\n")
            threading.Event().wait()
        if done == 1 and options.has("crash-while-loading"):
            raw("\n")
            raise LoadError(
                "safetensors_rust.SafetensorError: Error while deserializing header: "
                "MetadataIncompleteBuffer"
            )
        if done < SHARDS:
            time.sleep(load_s / SHARDS)
    log.line(
        f"Load weight end. elapsed={load_s:.2f} s, type=LightForCausalLM, "
        "avail mem=60.00 GB, mem usage=50.00 GB."
    )


def _make_pool(options: Options, log: Log) -> None:
    log.line(
        f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {options.kv_tokens}, "
        "K size: 5.00 GB, V size: 5.00 GB"
    )
    log.line("Memory pool end. avail mem=50.00 GB")
    if options.rank == 0:
        log.line(
            f"max_total_num_tokens={options.kv_tokens}, chunked_prefill_size=8192, "
            f"max_prefill_tokens=16384, max_running_requests={options.max_running_requests}, "
            f"context_len={options.context_tokens}, available_gpu_mem=50.00 GB"
        )


def _lose_peer(options: Options, log: Log, pipe: int) -> None:
    if options.peer_loss == "hang":
        # as NCCL does: nothing is said, and the next collective never ends
        os.write(pipe, PEER_LOST)
        return
    other = 1 if options.rank == 0 else 0
    raw(
        f"[rank{options.rank}]: torch.distributed.DistBackendError: NCCL error in: "
        "ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, "
        "NCCL version 2.30.7\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        f"exiting prematurely. Last error: socketProgress: Connection closed by remote peer "
        f"rank{other}\n"
    )
    log.line("Scheduler lost another rank.")
    time.sleep(options.peer_loss_delay_s)
    os.write(pipe, PEER_LOST_EXIT)


def report(options: Options, *, role: str, refusal: str | None = None) -> None:
    """Write this process's install report where the EngineSpec says; nothing without a spec.

    refusal: why a plugin refused; None = all is installed.
    """
    spec_path = os.environ.get(SPEC_VARIABLE)
    if spec_path is None or options.has("no-report"):
        return
    from sparkserve.model.engine_spec import EngineSpec

    spec = EngineSpec.model_validate_json(Path(spec_path).read_bytes())
    told = spec.agreement
    if options.has("wrong-report"):
        told = told[::-1]
    content = {
        "run_id": spec.run_id,
        "rank": spec.rank,
        "pid": os.getpid(),
        "role": role,
        "status": "installed" if refusal is None else "refused",
        "reason": refusal or "",
        "engine": "light",
        "engine_version": ENGINE_VERSION,
        "told": told,
        "adapters": [],
    }
    _write_whole(Path(spec.run_dir) / "reports" / f"{os.getpid()}.json", json.dumps(content))


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def spawn(options: Options) -> tuple[int, int]:
    """Start the scheduler; gives its pid and the descriptor to read what it says."""
    reader, writer = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            run(options, writer, parent)
        finally:
            os._exit(1)
    os.close(writer)
    return pid, reader
