"""Every environment variable that an engine is given, in one place, for all ranks.

Each variable is one field with its name and meaning, from which
``docs/reference/environment.md`` is generated. Nothing else in sparkserve renders a variable, and
no adapter reads one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from sparkserve.model.place import Place
from sparkserve.model.profile import CPU_SHIM, Profile


def _variable(name: str, meaning: str, *, per_rank: bool = False) -> Any:
    return field(default=None, metadata={"name": name, "meaning": meaning, "per_rank": per_rank})


@dataclass(frozen=True)
class EngineEnvironment:
    """The variables of one rank; a field that is None is not set."""

    unbuffered: str | None = _variable(
        "PYTHONUNBUFFERED", "Log lines arrive when they are written, so the watcher sees them."
    )
    python_path: str | None = _variable(
        "PYTHONPATH", "Folder of the CPU engine's stand-ins; not set in production."
    )
    offline: str | None = _variable(
        "HF_HUB_OFFLINE", "A launch needs no network; the checkpoint is already on the node."
    )
    plugins: str | None = _variable(
        "SGLANG_PLUGINS", "SGLang plugins that may load; everything else installed stays out."
    )
    model_package: str | None = _variable(
        "SGLANG_EXTERNAL_MODEL_PACKAGE", "Package of out-of-tree model classes."
    )
    rust_build: str | None = _variable(
        "SGLANG_RUST_BUILD_MODE", "`never`: no probe of a Rust toolchain before the server starts."
    )
    cpu_engine: str | None = _variable("SGLANG_USE_CPU_ENGINE", "Serve on the CPU.")
    cpu_binding: str | None = _variable(
        "SGLANG_CPU_OMP_THREADS_BIND", "Cores of each rank of a CPU engine, one field per rank."
    )
    host_ip: str | None = _variable(
        "SGLANG_HOST_IP",
        "Address that this rank's message queue advertises; unset it may be a Wi-Fi address.",
        per_rank=True,
    )
    host_ip_fallback: str | None = _variable(
        "HOST_IP", "Second name that SGLang reads for the same address.", per_rank=True
    )
    gloo_interface: str | None = _variable(
        "GLOO_SOCKET_IFNAME", "Interface of this node that carries the address.", per_rank=True
    )
    nccl_interface: str | None = _variable(
        "NCCL_SOCKET_IFNAME",
        "The same for NCCL's bootstrap; the leading = means exactly this name.",
        per_rank=True,
    )
    nccl_hca: str | None = _variable("NCCL_IB_HCA", "RDMA devices that NCCL may use.")
    nccl_gid: str | None = _variable(
        "NCCL_IB_GID_INDEX",
        "GID index on those devices, found in this node's own tables at every launch.",
        per_rank=True,
    )
    device_order: str | None = _variable(
        "CUDA_DEVICE_ORDER", "`PCI_BUS_ID`: device numbers mean the same in every process."
    )
    allocator: str | None = _variable(
        "PYTORCH_CUDA_ALLOC_CONF",
        "`expandable_segments:False`: True gives NaN logits with DeepSeek-V4.1.",
    )

    def render(self) -> dict[str, str]:
        """The variables that are set, by name."""
        values = {str(f.metadata["name"]): getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class VariableRow:
    """One row of the generated page."""

    name: str
    meaning: str
    per_rank: bool


def rows() -> tuple[VariableRow, ...]:
    """Every variable with its meaning, in the order of the fields."""
    return tuple(
        VariableRow(f.metadata["name"], f.metadata["meaning"], f.metadata["per_rank"])
        for f in fields(EngineEnvironment)
    )


def render(profile: Profile, places: Sequence[Place], rank: int) -> dict[str, str]:
    """The environment of one rank; ``fabric.nccl`` of the profile is added as it is."""
    place, engine = places[rank], profile.engine
    several = len(places) > 1
    cpu = engine.device == "cpu"
    environment = EngineEnvironment(
        unbuffered="1",
        python_path=_shim(engine.shim, place),
        offline="1",
        plugins=",".join(engine.plugins) if engine.kind == "sglang" else None,
        model_package=profile.model.external_package,
        rust_build="never",
        cpu_engine="1" if cpu else None,
        cpu_binding=_cpu_binding(places) if cpu and several else None,
        host_ip=place.address,
        host_ip_fallback=place.address,
        gloo_interface=place.interface,
        nccl_interface=f"={place.interface}" if several and not cpu else None,
        nccl_hca=",".join(profile.fabric.hca) or None,
        nccl_gid=None if place.gid_index is None else str(place.gid_index),
        device_order=None if cpu else "PCI_BUS_ID",
        allocator=None if cpu else "expandable_segments:False",
    )
    return environment.render() | profile.fabric.nccl


def _shim(shim: str | None, place: Place) -> str | None:
    if shim == CPU_SHIM:
        return str(PurePosixPath(place.package_dir) / "sim" / "cpu_shim")
    return shim


def _cpu_binding(places: Sequence[Place]) -> str:
    return "|".join(str(rank % place.cpu_count) for rank, place in enumerate(places))
