"""``sparkserve profile list | show | validate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkserve.cli import complete
from sparkserve.cli.command import bare, command, group
from sparkserve.cli.doors import environment
from sparkserve.cli.options import ClusterOpt, SetOpt
from sparkserve.errors import ConfigError, ExitCode
from sparkserve.report.console import Answer, Console

if TYPE_CHECKING:
    from sparkserve.ops.target import Target
    from sparkserve.profiles import ResolvedProfile
    from sparkserve.report.profile_view import ProfileEntry
    from sparkserve.report.text import Line

app = group(summary="Profiles: what is served and how.")
app.callback()(bare)


def list_profiles(console: Console) -> None:
    """List the built-in profiles and your own."""
    from sparkserve import profiles
    from sparkserve.report.profile_view import list_answer

    entries = [_entry(name) for name in profiles.names()]
    console.answer(list_answer(entries, width=console.width))
    for entry in entries:
        if entry.note is not None:
            console.note(entry.note)


def show(
    console: Console,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Profile, or a path to one; else the one that launch would take.",
            autocompletion=complete.profiles,
            show_default=False,
        ),
    ] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Every value with the place that set it.")
    ] = False,
    cluster: ClusterOpt = None,
    settings: SetOpt = None,
) -> None:
    """Show a profile as launch would use it.

    Overrides of the cluster, the environment and --set are applied. The output is TOML that can
    be loaded again.
    """
    from sparkserve.ops.target import Target, resolve
    from sparkserve.report.profile_view import origin_answer, show_answer

    target = Target(profile=name, cluster=cluster, settings=tuple(settings or ()))
    resolved = _load(name, target) if name else resolve(target, environment()).profile
    if resolved.source.note is not None:
        console.note(resolved.source.note)
    answer = origin_answer(resolved, width=console.width) if origin else show_answer(resolved)
    console.answer(answer)


def validate(
    console: Console,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Paths, or names of profiles.",
            autocompletion=complete.profiles,
        ),
    ],
) -> int:
    """Check profiles and name all that is wrong with them.

    Settings that cannot work together are wrong too; `sparkserve plan` adds up the memory. Exit
    code 2 where one of them is not valid.
    """
    lines: list[Line] = []
    data = []
    for file in files:
        found, problems = _judged(file)
        lines += found
        data.append({"file": file, "valid": problems is None, "problems": problems})
    bad = tuple(str(entry["file"]) for entry in data if not entry["valid"])
    console.answer(Answer(lines, {"profiles": data}, bad))
    return int(ExitCode.CONFIG if bad else ExitCode.OK)


def _judged(file: str) -> tuple[list[Line], str | None]:
    """One file's lines, and what is wrong with it; None = nothing."""
    from sparkserve import profiles
    from sparkserve.adapters import registry
    from sparkserve.ops.plan import rules_broken
    from sparkserve.report.profile_view import invalid_lines, valid_lines

    try:
        resolved = profiles.load(file)
        registry.validate(resolved.profile.adapters)
    except ConfigError as error:
        return invalid_lines(file, error.message), error.message
    broken = [
        f"{finding.observed}, expected {finding.expected} ({finding.code})"
        for finding in rules_broken(resolved.profile)
    ]
    if broken:
        return invalid_lines(file, "\n".join(broken)), "\n".join(broken)
    return valid_lines(resolved), None


def _load(name: str, target: Target) -> ResolvedProfile:
    """A named profile with the overrides that a launch would put on top, whatever the nodes."""
    from sparkserve import profiles
    from sparkserve.ops.target import resolve_cluster

    file, _ = resolve_cluster(target)
    return profiles.load(
        name,
        layers=[
            profiles.layer_from_settings(target.settings),
            profiles.layer_from_environment(environment()),
            profiles.layer_from_cluster(file.cluster.name, file.overrides),
        ],
    )


def _entry(name: str) -> ProfileEntry:
    from sparkserve import profiles
    from sparkserve.report.profile_view import ProfileEntry

    source = profiles.find(name)
    try:
        resolved, problem = profiles.load(name), None
    except ConfigError as error:
        resolved, problem = None, error.message
    return ProfileEntry(
        name=name,
        kind=source.kind,
        path=str(source.path),
        resolved=resolved,
        problem=problem,
        note=source.note,
    )


command(app, "list", examples=["sparkserve profile list"])(list_profiles)
command(
    app,
    "show",
    examples=[
        "sparkserve profile show local-demo",
        "sparkserve profile show --origin",
        "sparkserve profile show local-demo --set serving.port=9000 > mine.toml",
    ],
)(show)
command(app, "validate", examples=["sparkserve profile validate ./mine.toml"])(validate)
