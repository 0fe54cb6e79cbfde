"""How a function becomes a command: option groups, examples, errors to exit codes, help pages."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from sparkserve.cli.errors import reporting
from sparkserve.cli.options import HERE, HOW, WHAT, WHERE, OptionGroup, OutputOptions
from sparkserve.report.console import Console

Function = Callable[..., int | None]
_PANELS = ("Arguments", "Options", WHAT, WHERE, HERE, HOW)
# Typer's own name for it differs between versions; this is its base class in all of them.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
_NAMES_WIDTH = 30
_LAST = ("completion", "version")


class HelpfulCommand(TyperCommand):
    """A command whose help page groups the options and ends in examples."""

    tells_steps = False
    """Whether --verbose makes a difference; it is taken by every command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS] FILE [NAME]``: what may be left out stands in brackets."""
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                name = param.metavar or param.name
                pieces.append(name if param.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options under the titles of their groups, all in one column."""
        panels: dict[str, list[tuple[str, str]]] = {title: [] for title in _PANELS}
        for param in self.get_params(ctx):
            if param.name == "verbose" and not self.tells_steps:
                continue
            if param.param_type_name == "argument":
                title, names = "Arguments", param.metavar or param.name
            elif param.name == "help":
                title, names = HOW, _names(param)
            else:
                title, names = getattr(param, "rich_help_panel", None) or "Options", _names(param)
            panels[title].append((names, getattr(param, "help", None) or ""))
        longest = max((len(names) for rows in panels.values() for names, _ in rows), default=0)
        width = min(longest, _NAMES_WIDTH)
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(f"{names:<{width}}", told) for names, told in rows])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they are."""
        _write_epilog(self.epilog, formatter)


class TellingCommand(HelpfulCommand):
    """A command that has more to tell with --verbose."""

    tells_steps = True


class HelpfulGroup(TyperGroup):
    """A group whose help page ends in the flow and examples."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands in the order of their registration, those about sparkserve itself last."""
        return sorted(super().list_commands(ctx), key=lambda name: name in _LAST)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its whole first sentence."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, (one.help or "").strip().partition("\n")[0]) for name, one in commands if one
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the named command; where nothing is near the name, list what there is."""
        try:
            return super().resolve_command(ctx, args)
        except _USAGE_ERROR as error:
            told = getattr(error, "message", "")
            if "Did you mean" not in told:
                error.message = f"{told} There are: {', '.join(self.list_commands(ctx))}."  # type: ignore[attr-defined]
            raise

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they are."""
        _write_epilog(self.epilog, formatter)


def command(
    app: typer.Typer,
    name: str,
    *,
    examples: Sequence[str],
    ndjson: bool = False,
    steps: bool = False,
) -> Callable[[Function], Function]:
    """Add a function as a command.

    Parameters of the function that are option groups are spread into single options; one of
    type Console gets the sink that the output options describe. Its return value is the exit
    code, None = 0. Errors are shown and become exit codes here.

    ndjson: with ``--json`` it writes a line per event, so an error is such a line too.
    steps: it has more to tell with ``--verbose``.
    """

    def add(function: Function) -> Function:
        groups, signature = _spread(function)

        @functools.wraps(function)
        def run(**values: Any) -> None:
            output = OutputOptions(**_taken(OutputOptions, values))
            with reporting(output, ndjson=ndjson) as console:
                given: dict[str, Any] = {
                    name: console if kind is Console else kind(**_taken(kind, values))
                    for name, kind in groups.items()
                }
                code = function(**given, **values)
            if code:
                raise typer.Exit(code)

        del run.__wrapped__
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        epilog = "\n".join(["Examples:", *(f"  {example}" for example in examples)])
        app.command(name, cls=TellingCommand if steps else HelpfulCommand, epilog=epilog)(run)
        return function

    return add


def group(*, summary: str, epilog: str | None = None) -> typer.Typer:
    """A group of commands; named alone it shows its help page."""
    return typer.Typer(
        cls=HelpfulGroup,
        help=summary,
        epilog=epilog,
        add_completion=False,
        add_help_option=False,
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def print_help(ctx: typer.Context, wanted: bool) -> None:
    """Show a group's help page and leave."""
    if wanted and not ctx.resilient_parsing:
        typer.echo(ctx.get_help())
        raise typer.Exit


# Typer's own help option of a group loads pydantic whenever a command of the group runs, be it
# only to show that command's help.
HelpOpt = Annotated[
    bool,
    typer.Option(
        "--help", "-h", is_eager=True, callback=print_help, help="Show this message and exit."
    ),
]


def bare(ctx: typer.Context, _help: HelpOpt = False) -> None:
    """What a group does when no command of it is named."""
    print_help(ctx, ctx.invoked_subcommand is None)


def _spread(function: Function) -> tuple[dict[str, type[Any]], inspect.Signature]:
    """The function's groups by parameter, and the signature with their fields in their place."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {}
    spread: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if kind is Console or (isinstance(kind, type) and issubclass(kind, OptionGroup)):
            groups[parameter.name] = kind
            spread += _fields(OutputOptions if kind is Console else kind)
        else:
            spread.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))
    return groups, inspect.Signature(spread)


def _fields(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]


def _taken(group: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Take a group's values out of all values."""
    return {field.name: values.pop(field.name) for field in dataclasses.fields(group)}


def _names(param: Any) -> str:
    """``-c, --cluster NAME``."""
    names = sorted([*param.opts, *param.secondary_opts], key=lambda name: name.startswith("--"))
    takes_value = not getattr(param, "is_flag", False) and not getattr(param, "count", False)
    metavar = f" {param.metavar or 'VALUE'}" if takes_value else ""
    return ", ".join(names) + metavar


def _write_epilog(epilog: str | None, formatter: Any) -> None:
    if epilog:
        formatter.write(f"\n{epilog}\n")
