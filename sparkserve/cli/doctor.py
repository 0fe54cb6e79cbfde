"""``sparkserve doctor``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors, this_python
from sparkserve.cli.options import OptionGroup, TargetOptions
from sparkserve.errors import ConfigError
from sparkserve.report.console import Console

if TYPE_CHECKING:
    from sparkserve.checks.check import Check
    from sparkserve.model.diagnosis import Bundle
    from sparkserve.ops.doctor import Examination

_EXAMPLES = (
    "sparkserve doctor",
    "sparkserve doctor --only fabric,memory -v",
    "sparkserve doctor --bandwidth",
    "sparkserve doctor --bandwidth --collective --profile my.toml",
    "sparkserve doctor --save bundle",
    "sparkserve doctor --replay bundle --json",
    "sparkserve doctor --replay engine.log --as 'engine log' --node spark2",
    "sparkserve doctor --fix mtu --dry-run",
)


@dataclass(frozen=True)
class DoctorOptions(OptionGroup):
    """What doctor alone knows."""

    stage: Annotated[
        str | None,
        typer.Option("--stage", metavar="STAGE", help="Only checks of a stage, such as launch."),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only a theme, check or code; repeatable."),
    ] = None
    list_checks: Annotated[
        bool, typer.Option("--list-checks", help="List the checks; read nothing.")
    ] = False
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail at warnings and at what is unknown, too.")
    ] = False
    bandwidth: Annotated[
        bool, typer.Option("--bandwidth", help="Measure between the nodes, too; some seconds each.")
    ] = False
    size: Annotated[
        str | None,
        typer.Option(
            "--size", metavar="SIZE", help="Buffers of one test, at most 256M; else 512K."
        ),
    ] = None
    collective: Annotated[
        bool,
        typer.Option("--collective", help="With --bandwidth: an all-reduce over all nodes, too."),
    ] = False
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="DIR", help="Write what was read, secrets masked."),
    ] = None
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay", metavar="DIR", help="Judge saved texts: a folder, a file, - for stdin."
        ),
    ] = None
    kind: Annotated[
        str | None,
        typer.Option("--as", metavar="KIND", help="What that file is: a command, path or words."),
    ] = None
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Where that file is from.")
    ] = None

    fix: Annotated[
        list[str] | None,
        typer.Option(
            "--fix", metavar="MEND", help="Apply a named mend, or all; each can be taken back."
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="With --fix: only show what it would do.")
    ] = False
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back what --fix changed on these nodes.")
    ] = False


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "doctor", examples=_EXAMPLES, steps=True)(doctor)


def doctor(console: Console, target: TargetOptions, options: DoctorOptions) -> int:
    """Find what is wrong, name the node, and tell what mends it.

    Reads every node at once and changes nothing. Every finding says what was seen, what was
    expected, why it matters and what mends it. Exit code: 0 nothing failed, 3 a node cannot be
    reached, 4 hardware, 5 memory, else 1.
    """
    from sparkserve.ops.doctor_choice import catalogue, choose
    from sparkserve.report.doctor_list import catalogue_answer

    _refuse_contradictions(options, target)
    checks = choose(options.stage, options.only or ())
    if options.list_checks:
        console.answer(catalogue_answer(catalogue(checks), width=console.width))
        return 0
    if options.replay is not None:
        return _replay(console, options, options.replay, checks)
    if options.undo:
        return _undo(console, target)
    return _live(console, target, options, checks)


def _refuse_contradictions(options: DoctorOptions, target: TargetOptions) -> None:
    """An option that would be ignored is named before anything is read."""
    if options.replay is None and (options.kind or options.node):
        raise ConfigError("--as and --node describe a text, expected --replay FILE with them")
    given = {
        "--save": options.save is not None,
        "--fix": options.fix is not None,
        "--undo": options.undo,
        "--bandwidth": options.bandwidth,
    }
    alone = "--replay" if options.replay is not None else "--undo" if options.undo else None
    other = next((name for name, is_given in given.items() if is_given and name != alone), None)
    if alone and other:
        raise ConfigError(f"{other} and {alone} contradict each other: name one of them")
    if options.replay is not None and target != TargetOptions():
        raise ConfigError(
            "--replay judges texts alone: no cluster, node or profile can be named with it"
        )
    if options.dry_run and not options.fix:
        raise ConfigError("--dry-run belongs to --fix", hint="sparkserve doctor --fix all -n")
    if options.size is not None and not options.bandwidth:
        raise ConfigError("--size belongs to --bandwidth")
    if options.collective and not options.bandwidth:
        raise ConfigError(
            "--collective belongs to --bandwidth", hint="sparkserve doctor --bandwidth --collective"
        )


def _live(
    console: Console, target: TargetOptions, options: DoctorOptions, checks: tuple[Check, ...]
) -> int:
    from sparkserve.ops import doctor as use_case
    from sparkserve.ops.mend import known_names
    from sparkserve.report.doctor_view import observer_for

    request = use_case.DoctorRequest(
        target=target.target(),
        this_python=this_python(),
        checks=checks,
        for_launch=options.stage == "launch",
        strict=options.strict,
        save=options.save,
        fix=known_names(options.fix or ()),
        dry_run=options.dry_run,
        test_bytes=_size(options.size or "512K") if options.bandwidth else None,
        collective=options.collective,
    )
    with observer_for(console) as view:
        found = use_case.run(request, open_doors(), view)
    _show(console, found, told="bandwidth" if options.bandwidth else None)
    failed = found.fix is not None and found.fix.exit_code
    return found.result.exit_code or int(failed)


def _size(text: str) -> int:
    from sparkserve.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"--size {text}: {error}") from error


def _undo(console: Console, target: TargetOptions) -> int:
    from sparkserve.ops import doctor as use_case
    from sparkserve.report.doctor_view import observer_for
    from sparkserve.report.mend_view import fix_answer

    with observer_for(console) as view:
        result = use_case.undo(target.target(), open_doors(), view)
    console.answer(fix_answer(result))
    return result.exit_code


def _show(console: Console, found: Examination, told: str | None = None) -> None:
    from sparkserve.checks.cabling import cabling
    from sparkserve.report.doctor_view import Shown, doctor_answer

    shown = Shown(
        result=found.result,
        cables=cabling(found.scene),
        fix=found.fix,
        width=console.width,
        verbosity=console.settings.verbosity,
        told=told,
    )
    console.answer(doctor_answer(shown))


def _replay(
    console: Console, options: DoctorOptions, source: Path, checks: tuple[Check, ...]
) -> int:
    from sparkserve.ops import doctor as use_case

    texts = _texts(source, options)
    found = use_case.examined(
        texts, checks, for_launch=options.stage == "launch", strict=options.strict
    )
    _show(console, found)
    return found.result.exit_code


def _texts(source: Path, options: DoctorOptions) -> Bundle:
    from sparkserve.model.diagnosis import Bundle
    from sparkserve.ops import bundle, pasted

    if source.is_dir():
        if options.kind is not None:
            raise ConfigError(f"--as says what one file is, and {source} is a folder")
        if (source / bundle.MANIFEST).exists():
            return bundle.load(source)
        return pasted.folder_of_texts(source, options.node)
    if str(source) != "-" and not source.exists():
        raise ConfigError(f"cannot read {source}: no such file or folder")
    if options.kind is None:
        raise ConfigError(
            f"what is {source}? name the command, path or kind of text",
            hint=f"sparkserve doctor --replay {source} --as 'engine log'",
        )
    try:
        text = (
            bundle.read_stream(sys.stdin.buffer) if str(source) == "-" else bundle.read_text(source)
        )
    except bundle.NoText as error:
        raise ConfigError(f"{source}: {error}") from error
    return Bundle(readings=(pasted.one_text(text, options.kind, options.node),))
