"""Install the adapters of one EngineSpec into this process, read them back, and say so.

Runs inside the engine's processes only. Every process installs everything, because none knows
its role yet; the process that turns out to own the model reads all targets back once more just
before the model loads, and only its report counts for readiness.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from sparkserve.adapters import guard, registry, reports, source
from sparkserve.adapters.fatal import die
from sparkserve.errors import EngineRefused, ShardError, SparkserveError
from sparkserve.model.base import digest
from sparkserve.model.engine_spec import (
    AdapterSpec,
    EngineSpec,
    InstalledAdapter,
    InstalledTarget,
    InstallReport,
)

SCHEDULER_INIT = "sglang.srt.managers.scheduler.Scheduler.__init__"
"""Where the process that owns the model is recognised; the frame's only target of its own."""

Role = Literal["main", "child", "scheduler"]


@dataclass(frozen=True)
class Patch:
    """What an adapter wants at one of its targets."""

    target: str
    value: Any
    """``replace``: the class or function; ``wrap``: a function ``(original, *args, **kwargs)``;
    ``register``: a function without arguments that registers."""
    present: Callable[[], bool] | None = None
    """``register`` only: whether the registration is there."""


@dataclass(frozen=True)
class Placed:
    """One target as it stood right after installation."""

    adapter: str
    target: str
    found: Any
    present: Callable[[], bool] | None


@dataclass(frozen=True)
class Installation:
    """What this process installed."""

    spec: EngineSpec
    engine_version: str
    adapters: tuple[InstalledAdapter, ...]
    placed: tuple[Placed, ...]


def install_from(spec_path: str) -> None:
    """Install everything the EngineSpec file names, then write this process's report.

    Raises:
        SystemExit: 78 when an adapter refuses.
        OSError, ValueError: the file cannot be read or is no EngineSpec.
    """
    spec = EngineSpec.model_validate_json(Path(spec_path).read_text(encoding="utf-8"))
    role: Role = "main" if multiprocessing.parent_process() is None else "child"
    version = importlib.metadata.version("sglang")
    try:
        installation = install_all(spec, version)
    except SparkserveError as error:
        _refuse(spec, version, role, error)
    reports.write_report(spec.run_dir, _report(installation, role))


def install_all(spec: EngineSpec, engine_version: str) -> Installation:
    """Guard and install each adapter in the spec's order, and hook the scheduler.

    Raises:
        EngineRefused: an adapter is unknown, does not fit this engine, cannot trust its files,
            or did not take hold.
    """
    engine = guard.Engine(engine_version, spec.world_size, source.live_digest)
    installed: list[InstalledAdapter] = []
    placed: list[Placed] = []
    for wanted in spec.adapters:
        adapter, places = _install_one(spec, wanted, engine)
        installed.append(adapter)
        placed += places
    installation = Installation(spec, engine_version, tuple(installed), tuple(placed))
    _hook_scheduler(installation)
    return installation


def read_back(installation: Installation) -> None:
    """Check that every target is still what was installed.

    Raises:
        EngineRefused: something else stands there now.
    """
    for place in installation.placed:
        if place.present is not None:
            same = place.present()
        else:
            same = source.live(place.target) is place.found
        if not same:
            raise EngineRefused(place.adapter, f"{place.target} was changed after installation")


def _install_one(
    spec: EngineSpec, wanted: AdapterSpec, engine: guard.Engine
) -> tuple[InstalledAdapter, list[Placed]]:
    try:
        meta = registry.load(wanted.name)
    except SparkserveError as error:
        raise EngineRefused(wanted.name, error.message) from error
    verdict = guard.judge(meta, wanted.settings, engine)
    if verdict.settings is None or not verdict.ok:
        raise EngineRefused(wanted.name, verdict.reason)
    module = importlib.import_module(f"sparkserve.adapters.{wanted.name}.install")
    try:
        patches = {patch.target: patch for patch in module.install(spec, verdict.settings)}
    except ShardError as error:
        raise EngineRefused(wanted.name, error.message) from error
    named = {target.target for target in verdict.targets}
    if patches.keys() != named:
        raise EngineRefused(
            wanted.name, f"installs {sorted(patches)}, but its META names {sorted(named)}"
        )
    places = [_place(wanted.name, target, patches[target.target]) for target in verdict.targets]
    adapter = InstalledAdapter(
        name=wanted.name, settings_digest=digest(verdict.settings), targets=verdict.targets
    )
    return adapter, places


def _place(adapter: str, target: InstalledTarget, patch: Patch) -> Placed:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    before = source.live(target.target)
    if target.kind == "register":
        if patch.present is None:
            raise EngineRefused(adapter, f"{target.target}: registers without a read-back")
        patch.value()
        took_hold = patch.present()
    else:
        kind = HookType.REPLACE if target.kind == "replace" else HookType.AROUND
        HookRegistry.register(target.target, patch.value, kind)
        # The registry logs its own failures and goes on: what counts is what stands there now.
        HookRegistry.apply_hooks()
        now = source.live(target.target)
        took_hold = now is patch.value if isinstance(patch.value, type) else now is not before
    if not took_hold:
        raise EngineRefused(adapter, f"{target.target} was not changed by the hook registry")
    return Placed(adapter, target.target, source.live(target.target), patch.present)


def _hook_scheduler(installation: Installation) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    spec, version = installation.spec, installation.engine_version

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            read_back(installation)
            reports.write_report(spec.run_dir, _report(installation, "scheduler"))
            return original(*args, **kwargs)
        except SparkserveError as error:
            _refuse(spec, version, "scheduler", error)

    before = source.live(SCHEDULER_INIT)
    HookRegistry.register(SCHEDULER_INIT, around, HookType.AROUND)
    HookRegistry.apply_hooks()
    if source.live(SCHEDULER_INIT) is before:
        raise EngineRefused("frame", f"{SCHEDULER_INIT} was not changed by the hook registry")


def _report(installation: Installation, role: Role) -> InstallReport:
    return InstallReport(
        run_id=installation.spec.run_id,
        rank=installation.spec.rank,
        pid=os.getpid(),
        role=role,
        status="installed",
        engine_version=installation.engine_version,
        told=installation.spec.agreement,
        adapters=installation.adapters,
    )


def _refuse(spec: EngineSpec, version: str, role: Role, error: SparkserveError) -> NoReturn:
    adapter = error.adapter if isinstance(error, EngineRefused) else "frame"
    reason = error.reason if isinstance(error, EngineRefused) else error.message
    report = InstallReport(
        run_id=spec.run_id,
        rank=spec.rank,
        pid=os.getpid(),
        role=role,
        status="refused",
        reason=f"{adapter}: {reason}",
        engine_version=version,
        told=spec.agreement,
    )
    try:
        reports.write_report(spec.run_dir, report)
    finally:
        die(adapter, reason)
