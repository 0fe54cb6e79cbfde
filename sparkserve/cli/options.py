"""Every option of every command, once: named types, and groups that commands share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkserve.cli import complete
from sparkserve.errors import ConfigError
from sparkserve.report.console import Console, Mode, Settings

if TYPE_CHECKING:
    from sparkserve.ops.run_choice import RunChoice
    from sparkserve.ops.target import Target

WHERE = "Where"
WHAT = "What"
HERE = "One rank on this machine"
HOW = "How it is shown"

ClusterOpt = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME",
        help="Saved cluster.",
        autocompletion=complete.clusters,
        rich_help_panel=WHERE,
    ),
]
RunOpt = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="ID",
        help="Run id, or the beginning of one; else the newest that serves.",
        autocompletion=complete.runs,
        rich_help_panel=WHERE,
    ),
]
SetOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-o",
        metavar="KEY=VALUE",
        help="Profile value, such as serving.port=9000; may be repeated.",
        rich_help_panel=WHAT,
    ),
]
YesOpt = Annotated[
    bool, typer.Option("--yes", "-y", help="Take every question as answered with yes.")
]


class OptionGroup:
    """Base of option groups: the command decorator spreads their fields into a signature."""


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    """How a command shows what it has to say."""

    json: Annotated[bool, typer.Option("--json", help="JSON on stdout.", rich_help_panel=HOW)] = (
        False
    )
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Only what a script needs.", rich_help_panel=HOW),
    ] = False
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            metavar="",
            help="Every step; -vv engine logs too.",
            rich_help_panel=HOW,
        ),
    ] = 0
    no_color: Annotated[
        bool,
        typer.Option("--no-color", help="No colour; NO_COLOR does the same.", rich_help_panel=HOW),
    ] = False

    def console(self) -> Console:
        """The sink for one command.

        Raises:
            ConfigError: two modes at once.
        """
        if self.json and self.quiet:
            raise ConfigError("--json and --quiet contradict each other: name one of them")
        mode: Mode = "json" if self.json else "quiet" if self.quiet else "human"
        dumb = os.environ.get("TERM") == "dumb"
        columns = os.environ.get("COLUMNS", "")
        return Console(
            Settings(
                mode=mode,
                color=not (self.no_color or os.environ.get("NO_COLOR") or dumb),
                moving=not dumb,
                verbosity=self.verbose,
                width=int(columns) if columns.isdecimal() and int(columns) > 0 else None,
            )
        )


@dataclass(frozen=True)
class TargetOptions(OptionGroup):
    """Which profile on which nodes."""

    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            "-p",
            metavar="NAME",
            help="Profile, or a path to one; else the cluster's, else by what is there.",
            autocompletion=complete.profiles,
            rich_help_panel=WHAT,
        ),
    ] = None
    cluster: ClusterOpt = None
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--hosts",
            "-H",
            metavar="A,B",
            help="Nodes in rank order, as user@host:port.",
            rich_help_panel=WHERE,
        ),
    ] = None
    hosts_file: Annotated[
        Path | None,
        typer.Option(
            "--hosts-file",
            metavar="FILE",
            help="The same, one host a line.",
            rich_help_panel=WHERE,
        ),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, metavar="N", help="Use the first N nodes.", rich_help_panel=WHERE
        ),
    ] = None
    settings: SetOpt = None

    def target(self, values: dict[str, Any] | None = None) -> Target:
        """The same for a use case; values: further profile values, nested."""
        from sparkserve.ops.target import Target

        return Target(
            profile=self.profile,
            cluster=self.cluster,
            hosts=tuple(host for text in self.hosts or () for host in text.split(",")),
            hosts_file=self.hosts_file,
            nodes=self.nodes,
            settings=tuple(self.settings or ()),
            values=values or {},
        )


@dataclass(frozen=True)
class TuningOptions(OptionGroup):
    """Profile values that users of other launchers know under names of their own."""

    tp: Annotated[
        int | None,
        typer.Option(
            "--tp",
            "--tensor-parallel",
            metavar="N",
            help="Number of ranks, one per node (parallel.tp).",
            rich_help_panel=WHAT,
        ),
    ] = None
    mem_fraction: Annotated[
        float | None,
        typer.Option(
            "--mem-fraction-static",
            "--gpu-mem",
            metavar="F",
            help="Share of memory for weights and cache (context.mem_fraction_static).",
            rich_help_panel=WHAT,
        ),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(
            "--context-length",
            "--max-model-len",
            metavar="TOKENS",
            help="Longest context (context.length_tokens).",
            rich_help_panel=WHAT,
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            help="Port of the endpoint (serving.port).",
            rich_help_panel=WHAT,
        ),
    ] = None
    served_name: Annotated[
        str | None,
        typer.Option(
            "--served-model-name",
            metavar="NAME",
            help="Name that clients ask for (model.served_name).",
            rich_help_panel=WHAT,
        ),
    ] = None

    def values(self) -> dict[str, Any]:
        """What was given, as nested profile values."""
        given = (
            ("parallel", "tp", self.tp),
            ("context", "mem_fraction_static", self.mem_fraction),
            ("context", "length_tokens", self.length),
            ("serving", "port", self.port),
            ("model", "served_name", self.served_name),
        )
        values: dict[str, Any] = {}
        for table, key, value in given:
            if value is not None:
                values.setdefault(table, {})[key] = value
        return values


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """Which run a command means."""

    run: RunOpt = None
    cluster: ClusterOpt = None

    def choice(self, positional: str | None = None) -> RunChoice:
        """The same for a use case.

        positional: the run as an argument, where the command takes one.

        Raises:
            ConfigError: two different runs are named.
        """
        from sparkserve.ops.run_choice import RunChoice

        if positional is not None and self.run is not None and positional != self.run:
            raise ConfigError(f"two runs are named: {positional} and --run {self.run}")
        return RunChoice(run_id=positional or self.run, cluster=self.cluster)
