"""A profile: everything a user decides about one served model, typed and with units.

One TOML file per profile. Unknown keys are errors. Values that two fields must agree on are
checked here, so that a contradiction never reaches a node.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from sparkserve.model.base import Model, digest
from sparkserve.model.layout import Layout
from sparkserve.model.vigil import WedgeAction

GidPolicy = Literal["resolve", "unset", "pin"]
EngineKind = Literal["sglang", "vllm", "light"]
"""``light`` is the simulated engine of ``--simulate`` and the tests: same flags, no model."""


THIS_PYTHON = "this"
CPU_SHIM = "cpu"


class ModelSettings(Model):
    """Which model, and what it is called at the endpoint."""

    path: str
    """Directory on every node; relative paths lie below ``<root>/checkpoints``."""
    served_name: str
    """Model name that clients send."""
    repo: str | None = None
    """Hugging Face repository the checkpoint comes from."""
    revision: str | None = None
    """Pinned commit of the repository the checkpoint came from."""
    obtain: str | None = None
    """Command that brings the checkpoint; shown where it is missing."""
    external_package: str | None = None
    """Python package with out-of-tree model classes (``SGLANG_EXTERNAL_MODEL_PACKAGE``)."""


class EngineSettings(Model):
    """Which engine, which version, how it is started."""

    kind: EngineKind = "sglang"
    """``sglang``, ``vllm``, or ``light``: the simulated engine."""
    version: str | None = None
    """Exact version demanded on every node; None accepts what is installed."""
    runtime: Literal["venv", "container"] = "venv"
    """How the engine is installed on the nodes."""
    python: str = "venv/bin/python"
    """``venv``: interpreter on the node; relative paths lie below the node's root, and ``this``
    is the interpreter that runs sparkserve (for this machine only)."""
    image: str | None = None
    """``container``: image reference pinned by digest, ``name@sha256:...``."""
    device: Literal["cuda", "cpu"] = "cuda"
    """``cpu`` only for the demo and tests."""
    shim: str | None = None
    """Folder put on PYTHONPATH; ``cpu`` = the CPU engine's stand-ins; None in production."""
    plugins: tuple[str, ...] = ("sparkserve",)
    """SGLang plugins allowed to load."""
    trust_remote_code: bool = False
    """Whether the engine may run Python code that lies in the checkpoint."""
    extra_args: tuple[str, ...] = ()
    """Engine flags this profile adds as they are."""

    @model_validator(mode="after")
    def _container_is_pinned(self) -> EngineSettings:
        if self.runtime == "container" and (self.image is None or "@sha256:" not in self.image):
            raise ValueError(f"runtime container needs image = name@sha256:..., got {self.image}")
        return self


class ParallelSettings(Model):
    """How the model is split; one rank per node."""

    tp: int = Field(default=1, ge=1, le=8)
    """Tensor-parallel size = number of nodes."""
    ep: int = Field(default=1, ge=1, le=8)
    """Expert-parallel size; must divide tp."""

    @model_validator(mode="after")
    def _ep_divides_tp(self) -> ParallelSettings:
        if self.tp % self.ep:
            raise ValueError(f"ep must divide tp: tp = {self.tp}, ep = {self.ep}")
        return self


class ContextSettings(Model):
    """Lengths, batch and memory that the engine is given."""

    length_tokens: int | None = Field(default=None, ge=256, le=1_048_576)
    """Longest request, prompt and answer together; none = the model's own."""
    chunked_prefill_tokens: int | None = Field(default=None, ge=16)
    """Prompt tokens per prefill step."""
    max_running_requests: int | None = Field(default=None, ge=1)
    """Requests decoded at once."""
    kv_tokens: int | None = Field(default=None, ge=256)
    """KV pool pin (``--max-total-tokens``)."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Share of memory for weights and KV pool."""

    @model_validator(mode="after")
    def _pool_holds_one_context(self) -> ContextSettings:
        if self.length_tokens and self.kv_tokens and self.kv_tokens < self.length_tokens:
            raise ValueError(
                f"kv_tokens = {self.kv_tokens} cannot hold one context of "
                f"length_tokens = {self.length_tokens}"
            )
        return self


class SpeculationSettings(Model):
    """Speculative decoding; algorithm None = off."""

    algorithm: Literal["DSPARK"] | None = None
    """Draft algorithm; none = no speculation."""
    block_tokens: int = Field(default=5, ge=1, le=16)
    """Draft tokens per step."""
    sps_table: str | None = None
    """Steps-per-second table, equal on all ranks."""
    sts_table: str | None = None
    """Confidence table, equal on all ranks."""


class EngramSettings(Model):
    """Where the packed Engram rows lie."""

    directory: str | None = None
    """Relative paths lie below ``<root>/engram``; none = the engine's own tables."""
    layout: Layout = "columns"
    """Which rank owns which rows; the rows were packed for one layout."""
    source: str | None = None
    """Where ``pack`` reads the tables: a directory on the nodes (a copy, an NFS mount) or the http
    address of a folder of files; none = the checkpoint where a node holds it, else ``model.repo``
    on Hugging Face."""


class FabricSettings(Model):
    """Which network the ranks meet on, and NCCL's fixed settings."""

    bootstrap: Literal["management", "fabric"] = "fabric"
    """Network of the rendezvous, of GLOO and of SGLANG_HOST_IP."""
    dist_port: int = Field(default=20000, ge=1024, le=65535)
    """Port of rank 0 where the ranks meet."""
    guard_port: int = Field(default=20900, ge=1024, le=65535)
    """Port of rank 0's guard."""
    hca: tuple[str, ...] = ()
    """RDMA devices for NCCL_IB_HCA; empty = none named."""
    gid_policy: GidPolicy = "resolve"
    """Where NCCL_IB_GID_INDEX comes from: ``resolve`` finds it in each node's own tables at every
    launch, ``unset`` leaves it to NCCL 2.29.3 or newer, ``pin`` gives ``gid_index`` to all."""
    gid_index: int | None = Field(default=None, ge=0, le=255)
    """The index of ``pin``, which must be usable on every selected port of every node; with
    ``resolve`` a node that needs another one is told."""
    nccl: dict[str, str] = Field(default_factory=dict)
    """Further NCCL_* variables, equal on all ranks."""

    @model_validator(mode="after")
    def _nccl_names(self) -> FabricSettings:
        for name in self.nccl:
            if not name.startswith("NCCL_"):
                raise ValueError(f"fabric.nccl holds NCCL_* variables only, got {name}")
            if name == "NCCL_IB_GID_INDEX":
                raise ValueError(
                    f"{name} differs between nodes and is found on each; to give one, set "
                    "fabric.gid_policy = pin and fabric.gid_index"
                )
        if self.gid_policy == "pin" and self.gid_index is None:
            raise ValueError("gid_policy = pin needs gid_index")
        if self.dist_port == self.guard_port:
            raise ValueError(f"dist_port and guard_port are both {self.dist_port}")
        return self


class ServingSettings(Model):
    """The OpenAI-compatible endpoint of rank 0."""

    host: Literal["127.0.0.1", "localhost", "0.0.0.0"] = "127.0.0.1"
    """Bind address; ``0.0.0.0`` demands ``api_key_file``. The address of one interface is not
    possible: sparkserve itself reaches the endpoint through the head's loopback."""
    port: int = Field(default=8888, ge=1024, le=65535)
    """Port of the endpoint, and of each worker's dummy /health."""
    api_key_file: str | None = None
    """File on the controller (mode 0600) that holds the key; ``~`` is expanded."""
    tool_parser: str | None = None
    """SGLang's tool-call parser."""
    reasoning_parser: str | None = None
    """SGLang's reasoning parser."""
    metrics: bool = True
    """Whether the engine serves /metrics."""

    @property
    def is_loopback(self) -> bool:
        """Whether only the head node itself can reach the endpoint."""
        return self.host != "0.0.0.0"


class LimitSettings(Model):
    """When a launch is given up; time-outs measure lack of progress, not age."""

    no_progress_s: float = Field(default=600, gt=0)
    """Give up when no rank logged or read anything from storage for this long."""
    command_s: float = Field(default=45, gt=0)
    """Longest time for one command on a node."""
    memory_floor_gib: float = Field(default=0, ge=0)
    """Stop the run when MemAvailable stays below; 0 = no floor."""
    load_floor_gib: float = Field(default=0, ge=0)
    """Stop the start when MemAvailable is below, between the weights' end and ready; 0 = never.
    Healthy starts are known that go below 10."""
    load_fall_gib_per_s: float = Field(default=0, ge=0)
    """Stop the start when MemAvailable falls faster, in the same time; 0 = never."""
    load_fall_below_gib: float = Field(default=20, ge=0)
    """How much must be left for a fast fall to stop nothing."""
    wedge_action: WedgeAction = "report"
    """What a guard does when requests run, no token comes and the busy GPU draws the power of an
    idle one: ``off``, ``report`` it, or ``stop`` the run."""
    wedge_after_s: float = Field(default=60, gt=0)
    """For how long that must last."""
    wedge_power_w: float = Field(default=30, gt=0)
    """Power below which a GPU computes nothing."""
    start_memory_gib: float = Field(default=0, ge=0)
    """MemAvailable every node must have before the start."""
    lost_after_s: float = Field(default=6.0, gt=0, le=60)
    """A node silent for this long counts as gone."""


class GateSettings(Model):
    """What proves the endpoint: a question and what a right answer holds."""

    prompt: str = "What is the capital of France? Answer in one short sentence."
    """The question that proves the endpoint."""
    expect: str | None = None
    """Text that the answer must hold, ignoring case; None = any plausible text."""
    plausible: bool = True
    """Whether the answer must look like text; false only for models with random weights."""
    max_tokens: int = Field(default=32, ge=1)
    """Longest answer to it."""
    warmup_requests: int = Field(default=0, ge=0)
    """Size of the warm-up batch after the smoke answer."""


class Profile(Model):
    """One profile, fully resolved."""

    name: str
    """Equals the file's name."""
    summary: str = ""
    """What it serves, in one line."""
    model: ModelSettings
    engine: EngineSettings = EngineSettings()
    parallel: ParallelSettings = ParallelSettings()
    context: ContextSettings = ContextSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    engram: EngramSettings = EngramSettings()
    fabric: FabricSettings = FabricSettings()
    serving: ServingSettings = ServingSettings()
    limits: LimitSettings = LimitSettings()
    gate: GateSettings = GateSettings()
    adapters: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Adapter name -> its settings; an adapter runs exactly when it is named here."""

    @model_validator(mode="after")
    def _parts_agree(self) -> Profile:
        serving = self.serving
        if not serving.is_loopback and serving.api_key_file is None:
            raise ValueError(
                f"serving.host = {serving.host} is reachable from outside, "
                "so serving.api_key_file must name a key"
            )
        ports = {
            "serving.port": serving.port,
            "fabric.dist_port": self.fabric.dist_port,
            "fabric.guard_port": self.fabric.guard_port,
        }
        if len(set(ports.values())) < len(ports):
            raise ValueError(f"ports must differ: {ports}")
        if "engram_rows" in self.adapters and self.engram.directory is None:
            raise ValueError("adapter engram_rows needs engram.directory")
        if self.engine.kind == "sglang" and "sparkserve" not in self.engine.plugins:
            raise ValueError(
                "engine.plugins must hold sparkserve, without whose reports no run is ready: "
                f"{list(self.engine.plugins)}"
            )
        return self

    @property
    def digest(self) -> str:
        """Digest of the whole profile (sha256, 64 hex digits)."""
        return digest(self)
