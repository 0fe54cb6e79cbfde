"""What is wanted, as far as a text tells: a profile of ours, or one of a neighbour's recipe.

Every field may be unknown. Checks compare it with what was seen; a full profile is rendered to
the same fields, so that one rule serves the live doctor and a forum's paste.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sparkserve.facts.reader import Ask, Fact, Reader
from sparkserve.facts.settings_text import flat_settings, flatten, options_of
from sparkserve.model.cluster import Cluster
from sparkserve.model.profile import Profile
from sparkserve.model.reading import Reading

_MOST = 10**15
"""No count that people write is larger."""


class Wanted(Fact):
    """The wish; None = not said."""

    tp: int | None = None
    ep: int | None = None
    nodes: int | None = None
    topology: str | None = None
    rank_of: dict[str, int] | None = None
    """Rank by node name."""
    hca: str | None = None
    """Selector as in ``NCCL_IB_HCA``."""
    single_rail: bool | None = None
    gid_index: int | None = None
    fabric_interface: str | None = None
    socket_interface: str | None = None
    fabric_subnet: str | None = None
    context_tokens: int | None = None
    kv_tokens: int | None = None
    mem_fraction: float | None = None
    chunk_tokens: int | None = None
    max_running_requests: int | None = None
    default_max_tokens: int | None = None
    draft_tokens: int | None = None
    revision: str | None = None
    layout: str | None = None
    engram_dir: str | None = None
    model_path: str | None = None
    ports: tuple[int, ...] = ()
    start_memory_gib: float | None = None
    keys: dict[str, Any] | None = None
    """Every key of the text as it stands, dotted; for rules about one setting alone."""


class Setting(NamedTuple):
    """One setting as it was written."""

    key: str
    value: Any


def setting(wanted: Wanted, *names: str) -> Setting | None:
    """The first of these settings that the text holds, null included; None = not written.

    names: dotted or bare, in any case, with dashes or underscores; a bare name also finds the
    last part of a dotted key.
    """
    for name in names:
        sought = normal(name)
        for key, value in (wanted.keys or {}).items():
            plain = normal(key)
            if plain == sought or plain.endswith(f".{sought}"):
                return Setting(key, value)
    return None


def normal(key: str) -> str:
    """A key without what spellings differ in: case, dashes, leading dashes, outer quotes."""
    return key.strip("\"' ").lstrip("-").lower().replace("-", "_")


def whole_number(value: Any) -> int | None:
    """A count as people write it: ``1048576``, ``"1_048_576"``, ``"256k"``, ``1Mi``; else None.

    ``k``, ``m`` mean thousands and millions of tokens, ``ki``, ``mi`` powers of two.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        whole = abs(value) < _MOST and value == int(value)
        return int(value) if whole else None
    found = re.fullmatch(r"([-+]?\d[\d_,]{0,20})\s*(|k|m|ki|mi)", str(value).strip().lower())
    if found is None:
        return None
    factor = {"": 1, "k": 1000, "m": 1_000_000, "ki": 1024, "mi": 1_048_576}[found[2]]
    number = int(found[1].replace("_", "").replace(",", "")) * factor
    return number if abs(number) < _MOST else None


def _fraction(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    return words.get(str(value).strip().lower())


def _words(value: Any) -> str | None:
    if isinstance(value, list):
        value = ",".join(str(one) for one in value)
    if value is None or isinstance(value, bool | dict):
        return None
    return str(value).strip() or None


_FIELDS: tuple[tuple[str, Callable[[Any], Any], tuple[str, ...]], ...] = (
    ("tp", whole_number, (
        "parallel.tp", "tp", "tp_size", "tensor_parallel", "tensor_parallel_size",
    )),
    ("ep", whole_number, (
        "parallel.ep", "ep", "ep_size", "expert_parallel", "expert_parallel_size",
    )),
    ("nodes", whole_number, (
        "nnodes", "nodes", "n_nodes", "num_nodes", "node_count", "world_size",
    )),
    ("topology", _words, (
        "topology", "fabric.topology", "cluster.topology", "topology.kind", "topology.type",
    )),
    ("hca", _words, ("nccl_ib_hca", "ib_hca", "fabric.hca", "hca", "hca_list", "b12x_roce_hca")),
    ("single_rail", _truth, ("single_rail",)),
    ("gid_index", whole_number, (
        "nccl_ib_gid_index", "ib_gid_index", "gid_index", "roce_gid_index",
    )),
    ("fabric_interface", _words, (
        "fabric_ifname", "fabric_interface", "fabric_iface", "fabric_if", "roce_ifname",
    )),
    ("socket_interface", _words, (
        "nccl_socket_ifname", "gloo_socket_ifname", "tp_socket_ifname", "socket_ifname",
        "socket_interface",
    )),
    ("fabric_subnet", _words, ("fabric_subnet", "fabric_cidr", "fabric_network")),
    ("context_tokens", whole_number, (
        "context.length_tokens", "context_length", "max_model_len", "context_len",
        "context_tokens", "context_size", "length_tokens", "context",
    )),
    ("kv_tokens", whole_number, (
        "context.kv_tokens", "kv_tokens", "max_total_tokens", "max_total_num_tokens",
    )),
    ("mem_fraction", _fraction, (
        "context.mem_fraction_static", "mem_fraction_static", "gpu_memory_utilization",
        "mem_fraction", "gpu_mem", "gpu_mem_util",
    )),
    ("chunk_tokens", whole_number, (
        "context.chunked_prefill_tokens", "chunked_prefill_size", "chunked_prefill_tokens",
        "max_num_batched_tokens", "chunk_tokens", "prefill_chunk",
    )),
    ("max_running_requests", whole_number, (
        "context.max_running_requests", "max_running_requests", "max_num_seqs",
    )),
    ("default_max_tokens", whole_number, (
        "default_max_tokens", "dsv41_max_new_tokens", "default_max_new_tokens", "max_new_tokens",
        "max_output_tokens",
    )),
    ("draft_tokens", whole_number, (
        "speculation.block_tokens", "block_tokens", "speculative_dspark_block_size",
        "num_speculative_tokens", "mtp_num_tokens", "draft_tokens", "draft_k",
    )),
    ("revision", _words, ("model.revision", "revision", "model_revision")),
    ("layout", _words, ("engram.layout", "layout", "engram_layout")),
    ("engram_dir", _words, (
        "engram.directory", "engram.dir", "engram_dir", "engram_directory", "engram_path",
        "dsv41_engram_dir",
    )),
    ("model_path", _words, ("model.path", "model_path", "model_dir")),
    ("start_memory_gib", _fraction, ("limits.start_memory_gib", "start_memory_gib")),
)  # fmt: skip
_PORTS = (
    "serving.port", "fabric.dist_port", "fabric.guard_port", "port", "dist_port", "guard_port",
    "api_port", "metrics_port", "master_port", "dist_init_port", "rendezvous_port", "serve_port",
    "serving_port", "server_port", "http_port",
)  # fmt: skip
_COMMANDS = ("extra_args", "command", "args", "argv", "engine_args", "entrypoint")
_VARIABLES = ("environment", "env")


def from_keys(given: Mapping[str, Any]) -> Wanted:
    """The wish that a flat table of settings tells.

    A key counts by its whole dotted name or by its last part; a setting that is there but blank,
    or no number where one is due, leaves its field unknown and stays in ``keys``.
    """
    keys = _with_commands(given)
    by_name: dict[str, Any] = {}
    for key, value in keys.items():
        by_name.setdefault(normal(key), value)
    for key, value in keys.items():
        by_name.setdefault(normal(key).rpartition(".")[2], value)
    found: dict[str, Any] = {}
    for field, convert, names in _FIELDS:
        values = (convert(by_name[name]) for name in names if by_name.get(name) is not None)
        found[field] = next((value for value in values if value is not None), None)
    if by_name.get("speculation.algorithm", "") is None:
        found["draft_tokens"] = None
    nodes = by_name.get("nodes")
    if found["nodes"] is None and isinstance(nodes, list) and nodes:
        found["nodes"] = len(nodes)
    workers = by_name.get("workers")
    hosts = workers.replace(",", " ").split() if isinstance(workers, str) else workers
    if found["nodes"] is None and isinstance(hosts, list) and hosts:
        found["nodes"] = 1 + len(hosts)
    ranks = {key.rpartition("rank_of.")[2]: whole_number(v) for key, v in keys.items()
             if normal(key).startswith("rank_of.") or ".rank_of." in normal(key)}  # fmt: skip
    found["rank_of"] = {n: rank for n, rank in ranks.items() if rank is not None} or None
    ports = [whole_number(by_name[name]) for name in _PORTS if name in by_name]
    found["ports"] = tuple(dict.fromkeys(port for port in ports if port))
    return Wanted(**found, keys=keys)


def _with_commands(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings together with the options of command lines and of variable lists in them."""
    keys = dict(given)
    for key, value in given.items():
        last = normal(key).rpartition(".")[2]
        words = value.split() if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            continue
        if last in _COMMANDS:
            for name, option in options_of(words).items():
                keys.setdefault(name, option)
        elif last in _VARIABLES:
            for word in words:
                name, assigned, text = word.partition("=")
                if assigned:
                    keys.setdefault(name, text)
    return keys


def wanted_of(profile: Profile, cluster: Cluster) -> Wanted:
    """The wish that a full profile and its nodes tell; every profile key is in ``keys``."""
    keys = flatten(profile.model_dump(mode="json"))
    keys["nodes"] = len(cluster.nodes)
    keys["topology"] = "solo" if len(cluster.nodes) == 1 else cluster.topology
    for rank, node in enumerate(cluster.nodes):
        keys[f"rank_of.{node.name}"] = rank
    return from_keys(keys)


def wanted_text(wanted: Wanted) -> str:
    """YAML from which this module's reader makes the same wish again; for ``what = "profile"``."""
    rows = (f"{json.dumps(key)}: {json.dumps(v)}\n" for key, v in (wanted.keys or {}).items())
    return "".join(rows)


def _profile(reading: Reading) -> Iterable[Fact]:
    yield from_keys(flat_settings(reading.text, reading.format))


READERS: tuple[Reader, ...] = (
    Reader(
        id="wanted.profile",
        gives=(Wanted,),
        parse=_profile,
        whats=(
            r"(?:our |the |resolved |rendered |sparkserve |engine |launch |recipe )?"
            r"(?:profile|recipe|settings|serve config|launch config|compose file|env file)"
            r"(?: \(?excerpt\)?)?",
            r"(?:docker[- ])?compose(?:\.ya?ml| ya?ml)?",
        ),
        paths=(
            r".*/profiles?/[^/]+\.(?:toml|ya?ml|json)",
            r".*(?:docker-)?compose[^/]*\.ya?ml",
            r"(?:.*/)?[^/]*(?:profile|recipe)[^/]*\.(?:toml|ya?ml|json)",
            r"(?:.*/)?[\w.\-]*\.env(?:\.\w+)?",
        ),
    ),
)
ASKS: tuple[Ask, ...] = ()
