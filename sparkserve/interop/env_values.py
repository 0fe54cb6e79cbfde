"""Profile values of an env file: which variable means which dotted key."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from sparkserve.interop.env_source import EnvSource

_WHOLE_NUMBERS = {
    "CONTEXT_LENGTH": "context.length_tokens",
    "CHUNKED_PREFILL_SIZE": "context.chunked_prefill_tokens",
    "MAX_RUNNING_REQUESTS": "context.max_running_requests",
    "MAX_TOTAL_TOKENS": "context.kv_tokens",
    "DSPARK_BLOCK_SIZE": "speculation.block_tokens",
    "SERVER_PORT": "serving.port",
    "PORT": "serving.port",
    "DIST_PORT": "fabric.dist_port",
    "MASTER_PORT": "fabric.dist_port",
    "NCCL_IB_GID_INDEX": "fabric.gid_index",
}
_NUMBERS = {"MEM_FRACTION_STATIC": "context.mem_fraction_static"}
_TEXTS = {
    "MODEL_DIR": "model.path",
    "MODEL_PATH": "model.path",
    "HF_REPO": "model.repo",
    "HF_REVISION": "model.revision",
    "SERVED_MODEL_NAME": "model.served_name",
    "ENGRAM_DIR": "engram.directory",
    "DSPARK_SPS_TABLE": "speculation.sps_table",
    "DSPARK_STS_TABLE": "speculation.sts_table",
    "TOOL_CALL_PARSER": "serving.tool_parser",
    "REASONING_PARSER": "serving.reasoning_parser",
}
# Settings of the recipes' own launchers that merely begin like NCCL's variables.
_NOT_NCCL = (
    "NCCL_HOST_DIR", "NCCL_WORKER_DIR", "NCCL_OVERLAY_PIP", "NCCL_IB_GID_AUTO",
    "NCCL_IB_GID_MATCH_IP",
)  # fmt: skip
_NO_KEY = ("", "none", "off", "dummy", "0")
_SECRET_FLAGS = ("--api-key", "--admin-api-key")


class _Overrides:
    """Nested values, refused where two variables disagree about one key."""

    def __init__(self, source: EnvSource) -> None:
        self.values: dict[str, Any] = {}
        self._source = source
        self._setters: dict[str, str] = {}

    def set(self, dotted: str, value: Any, key: str) -> None:
        *tables, last = dotted.split(".")
        table = self.values
        for name in tables:
            table = table.setdefault(name, {})
        if last in table and table[last] != value:
            raise self._source.error(
                key, f"= {value!r}, but {self._setters[dotted]} says {table[last]!r}"
            )
        table[last] = value
        self._setters[dotted] = key


def take_overrides(source: EnvSource, *, nodes: int) -> dict[str, Any]:
    """Profile values of an env file, nested.

    nodes: size of the cluster, which is the tensor-parallel size.

    Raises:
        ConfigError: a number is none, or two variables contradict each other.
    """
    overrides = _Overrides(source)
    readers: tuple[tuple[dict[str, str], Callable[[str, str], Any]], ...] = (
        (_WHOLE_NUMBERS, source.take_int),
        (_NUMBERS, source.take_float),
        (_TEXTS, source.take),
    )
    for table, read in readers:
        for key, dotted in table.items():
            value = read(key, dotted)
            if value is not None:
                overrides.set(dotted, value, key)
    _take_parallel(source, overrides, nodes)
    _take_rendezvous(source, overrides)
    _take_speculation(source, overrides)
    _take_image(source, overrides)
    _take_devices(source, overrides)
    _take_arguments(source, overrides)
    _take_nccl(source, overrides)
    _drop_the_known(source)
    return overrides.values


def _take_parallel(source: EnvSource, overrides: _Overrides, nodes: int) -> None:
    if nodes > 1 or source.peek("TP_SIZE"):
        overrides.set("parallel.tp", nodes, "TP_SIZE")
    ep = source.take_int("EP_SIZE", "parallel.ep")
    if ep is not None and (ep < 1 or nodes % ep):
        raise source.error("EP_SIZE", f"= {ep}, expected a divisor of {nodes}")
    if ep is None and source.peek("TP_SIZE"):
        # The recipes' launchers default it to the tensor-parallel size.
        ep = nodes
    if ep is not None:
        overrides.set("parallel.ep", ep, "EP_SIZE")


def _take_rendezvous(source: EnvSource, overrides: _Overrides) -> None:
    value = source.take("DIST_INIT_ADDR", "nodes, fabric.dist_port")
    if value is None:
        return
    port = value.rpartition(":")[2]
    if not (port.isascii() and port.isdigit()):
        raise source.error("DIST_INIT_ADDR", f"= {value!r}, expected address:port")
    overrides.set("fabric.dist_port", int(port), "DIST_INIT_ADDR")


def _take_speculation(source: EnvSource, overrides: _Overrides) -> None:
    value = source.peek("SPEC_ALGO")
    if value is None:
        return
    if value.upper() == "DSPARK":
        overrides.set("speculation.algorithm", "DSPARK", "SPEC_ALGO")
        source.take("SPEC_ALGO", "speculation.algorithm")
    elif value.lower() in _NO_KEY:
        source.drop("SPEC_ALGO", "speculation is off unless the profile turns it on")
    else:
        source.drop("SPEC_ALGO", f"speculation by {value} is unknown here, DSPARK is known")


def _take_image(source: EnvSource, overrides: _Overrides) -> None:
    image = source.peek("IMAGE")
    if image is None:
        return
    if "@sha256:" not in image:
        source.drop("IMAGE", f"{image} is not pinned by digest (name@sha256:...)")
        return
    overrides.set("engine.image", source.take("IMAGE", "engine.image"), "IMAGE")
    overrides.set("engine.runtime", "container", "IMAGE")


def _take_devices(source: EnvSource, overrides: _Overrides) -> None:
    value = source.peek("NCCL_IB_HCA")
    if value is None:
        return
    if value.startswith("^"):
        source.drop("NCCL_IB_HCA", "fabric.hca names the devices to use, not those to leave out")
        return
    devices = [name for name in value.lstrip("=").replace(",", " ").split() if name]
    source.take("NCCL_IB_HCA", "fabric.hca")
    overrides.set("fabric.hca", devices, "NCCL_IB_HCA")


def _take_arguments(source: EnvSource, overrides: _Overrides) -> None:
    key = "EXTRA_SGLANG_ARGS"
    text = source.take(key, "engine.extra_args")
    if text is None:
        return
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise source.error(key, f"cannot be split into arguments: {error}") from error
    kept: list[str] = []
    skip = False
    for word in words:
        flag = word.partition("=")[0]
        if skip or flag in _SECRET_FLAGS:
            source.note(f"{key} {flag}" if not skip else key, "a key never stands in arguments")
            skip = flag in _SECRET_FLAGS and "=" not in word
            continue
        kept.append(word)
    if kept:
        overrides.set("engine.extra_args", kept, key)


def _take_nccl(source: EnvSource, overrides: _Overrides) -> None:
    for key in source.names:
        if key in _NOT_NCCL:
            source.drop(key, "NCCL comes with the engine; the GID is found on each node")
        elif key.startswith("NCCL_") and key not in source.used and not source.is_dropped(key):
            value = source.take(key, f"fabric.nccl.{key}")
            if value is not None:
                overrides.set(f"fabric.nccl.{key}", value, key)
    _take_extra_environment(source, overrides)


def _take_extra_environment(source: EnvSource, overrides: _Overrides) -> None:
    """KEY=VALUE pairs for every container: NCCL's are taken, the rest is reported one by one."""
    extra = "EXTRA_CONTAINER_ENV"
    text = source.take(extra, "fabric.nccl")
    for word in (text or "").split():
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise source.error(extra, f"holds {key!r}, expected KEY=VALUE pairs")
        if key == "NCCL_IB_GID_INDEX":
            source.note(f"{extra} {key}", "the GID is found on each node")
        elif key.startswith("NCCL_") and key not in _NOT_NCCL:
            overrides.set(f"fabric.nccl.{key}", value, extra)
        else:
            source.note(f"{extra} {key}", "sparkserve renders the engine's variables itself")


def _drop_the_known(source: EnvSource) -> None:
    """Keys whose reason deserves its own sentence."""
    if (source.peek("API_KEY") or "").lower() in _NO_KEY:
        source.drop("API_KEY", "no key is the default")
    source.drop(
        "API_KEY",
        "keys are never stored: write it to a file of mode 0600, name it serving.api_key_file",
    )
    source.drop("HOST", "serving.host stays on loopback until serving.api_key_file names a key")
    source.drop("READY_TIMEOUT", "limits.no_progress_s counts lack of progress, not age")
    source.drop("HEAD_MEM_FRACTION_STATIC", "all ranks get the same context.mem_fraction_static")
    source.drop("WORKER_DIR", "nodes keep everything below the cluster's root")
    source.drop("STATE_DIR", "runs are kept below the state folder of sparkserve")
    source.drop("LOG_DIR", "logs are kept with their run")
    mine, theirs = source.peek("ENGRAM_DIR"), source.peek("WORKER_ENGRAM_DIR")
    if theirs is not None:
        same = "all nodes use engram.directory"
        source.drop("WORKER_ENGRAM_DIR", same if mine == theirs else f"{same}, the head's one")
    for key in source.names:
        if key.startswith("WORKER_NCCL_"):
            source.drop(key, "what differs between nodes is found on each node")
