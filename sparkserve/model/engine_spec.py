"""What one rank is told (EngineSpec) and what its processes say they did (InstallReport).

``engine.json`` is the only thing that crosses from the control plane to the node plane. It
holds no secret: the API key and the guard's key lie beside it in files of mode 0600.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sparkserve.model.base import Model, digest
from sparkserve.model.layout import Layout
from sparkserve.model.vigil import MemoryRule, WedgeAction, WedgeRule

SPEC_SCHEMA = 1
SPEC_VARIABLE = "SPARKSERVE_ENGINE_SPEC"
"""The one environment variable of our own: the absolute path of this rank's engine.json."""


class EngramSpec(Model):
    """Where this rank's Engram rows lie."""

    directory: str
    """Absolute directory on the node that holds the row files of every Engram layer."""
    layout: Layout = "columns"
    """Row ownership rule the files were packed with."""


class AdapterSpec(Model):
    """One adapter to install, with its settings already validated by the control plane."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


class Expectations(Model):
    """What must be true on the node before the engine may start; None means not demanded."""

    engine_version: str | None = None
    """Exact version of the engine package, such as ``0.5.23``."""
    checkpoint_files: dict[str, int] = Field(default_factory=dict)
    """Size in bytes of each file below ``checkpoint``."""
    checkpoint: str | None = None
    """Absolute directory of the model on the node."""


class GuardSpec(Model):
    """How the guards of a run watch their ranks and each other."""

    port: int
    """TCP port of rank 0's guard."""
    head_address: str
    """Address of rank 0 as the other ranks reach it."""
    heartbeat_s: float = 1.0
    lost_after_s: float = 6.0
    """A peer that was silent for this long counts as gone (power loss, dark link)."""
    join_timeout_s: float = 120.0
    """How long the ranks may take to find each other at first."""
    stop_grace_s: float = 1.0
    """Between SIGTERM and SIGKILL when a run is torn down after a failure."""
    memory_floor_bytes: int = 0
    """Stop the run when MemAvailable stays below this; 0 = no floor."""
    start_memory: MemoryRule = MemoryRule()
    """Stop the run between the weights' end and ready; the default never does."""
    start_sample_s: float = 2.0
    wedge: WedgeRule = WedgeRule()
    wedge_action: WedgeAction = "report"
    wedge_sample_s: float = 10.0


class EngineSpec(Model):
    """Everything one rank is told; the only place where ranks differ."""

    schema_version: Literal[1] = 1
    run_id: str
    profile: str
    profile_digest: str
    node: str
    rank: int
    world_size: int
    run_dir: str
    """Absolute run directory on the node: specs, logs, reports and state of this run."""
    root: str
    """Absolute sparkserve root on the node."""
    argv: tuple[str, ...]
    """The engine's command line; ``argv[0]`` is an absolute path."""
    env: dict[str, str]
    """The engine's whole environment besides what ``node/boot.py`` passes through."""
    working_dir: str | None = None
    port: int
    """HTTP port of this rank's engine."""
    engram: EngramSpec | None = None
    adapters: tuple[AdapterSpec, ...] = ()
    expect: Expectations = Expectations()
    guard: GuardSpec

    @property
    def agreement(self) -> str:
        """Digest of what every rank must have been told alike: engine, adapters, settings."""
        return digest(
            {
                "run": self.run_id,
                "profile": self.profile_digest,
                "engine_version": self.expect.engine_version,
                "adapters": [adapter.model_dump(mode="json") for adapter in self.adapters],
            }
        )


class InstalledTarget(Model):
    """One dotted target that an adapter changed, read back after installation."""

    target: str
    kind: Literal["replace", "wrap", "register"]
    source_digest: str
    """Digest of the engine's own source of the target, as accepted by the guard."""


class InstalledAdapter(Model):
    """One adapter as it really stands in a process."""

    name: str
    settings_digest: str
    targets: tuple[InstalledTarget, ...]


class InstallReport(Model):
    """What one engine process installed; written to ``<run_dir>/reports/<pid>.json``."""

    run_id: str
    rank: int
    pid: int
    role: Literal["main", "child", "scheduler"]
    """``scheduler`` once the process that owns the model was seen; only those decide readiness."""
    status: Literal["installed", "refused"]
    reason: str = ""
    """Why an adapter refused; empty when installed."""
    engine: str = "sglang"
    engine_version: str
    told: str
    """``EngineSpec.agreement`` of the spec this process read."""
    adapters: tuple[InstalledAdapter, ...] = ()

    @property
    def agreement(self) -> str:
        """Digest that must be equal over all ranks: what was told and what was installed."""
        return digest(
            {
                "told": self.told,
                "engine": self.engine,
                "engine_version": self.engine_version,
                "adapters": [adapter.model_dump(mode="json") for adapter in self.adapters],
            }
        )
