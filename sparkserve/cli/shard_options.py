"""Options of the commands that work on packed Engram shards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkserve.cli.options import HERE, WHAT, OptionGroup, TargetOptions
from sparkserve.errors import ConfigError

if TYPE_CHECKING:
    from sparkserve.ops.shards import LocalRank, ShardsRequest


class Verify(StrEnum):
    """What of packed rows is compared with their source."""

    none = "none"
    sample = "sample"
    full = "full"


class ShardLayout(StrEnum):
    """Which rank owns which rows."""

    columns = "columns"
    equal = "equal"
    strided = "strided"


@dataclass(frozen=True)
class ShardsOptions(OptionGroup):
    """Which Engram shards a command means: a profile's on its nodes, or one rank's here."""

    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="1,14",
            help="Engram layers; else all of the model.",
            rich_help_panel=WHAT,
        ),
    ] = None
    layout: Annotated[
        ShardLayout | None,
        typer.Option(
            "--layout",
            metavar="columns|equal|strided",
            help="Which rank owns which rows; else engram.layout.",
            rich_help_panel=WHAT,
        ),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="DIR|URL",
            help="Where the tables are read; else the checkpoint on the node.",
            rich_help_panel=WHAT,
        ),
    ] = None
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Bearer token of an http source; a file of mode 0600.",
            rich_help_panel=WHAT,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="DIR|URL",
            help="The checkpoint.",
            rich_help_panel=HERE,
        ),
    ] = None
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the shards.",
            rich_help_panel=HERE,
        ),
    ] = None
    tp: Annotated[
        int | None,
        typer.Option(
            "--tp",
            "--tensor-parallel",
            min=1,
            metavar="N",
            help="Number of ranks; with a profile: parallel.tp.",
            rich_help_panel=HERE,
        ),
    ] = None
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=0, metavar="R", help="Which of them.", rich_help_panel=HERE),
    ] = None

    def request(self, target: TargetOptions, *, python: str, model_needed: bool) -> ShardsRequest:
        """The same for a use case.

        python: the interpreter that runs sparkserve.
        model_needed: whether one rank here cannot do without a checkpoint.

        Raises:
            ConfigError: an option is missing, does not fit the others, or is no list of layers.
        """
        from sparkserve.ops.shards import ShardsRequest

        values = {} if self.tp is None else {"parallel": {"tp": self.tp}}
        return ShardsRequest(
            target=target.target(values),
            this_python=python,
            local=self._local(target, model_needed=model_needed),
            layers=_layers(self.layers),
            layout=None if self.layout is None else self.layout.value,
            source=self.source,
            token_file=self.token_file,
        )

    def _local(self, target: TargetOptions, *, model_needed: bool) -> LocalRank | None:
        from sparkserve.ops.shards import LocalRank

        given = {"--model": self.model, "--out": self.out, "--rank": self.rank}
        if all(value is None for value in given.values()):
            return None
        if not model_needed:
            del given["--model"]
        given["--tp"] = self.tp
        missing = [name for name, value in given.items() if value is None]
        if self.out is None or self.rank is None or self.tp is None or missing:
            raise ConfigError(
                f"one rank on this machine also needs {', '.join(missing)}",
                hint=f"sparkserve {'pack --model DIR' if model_needed else 'verify --engram'} "
                "--out DIR --tp N --rank R",
            )
        strange = {
            "--profile": target.profile,
            "--cluster": target.cluster,
            "--hosts": target.hosts,
            "--hosts-file": target.hosts_file,
            "--nodes": target.nodes,
            "--set": target.settings,
            "--source": self.source,
        }
        named = [name for name, value in strange.items() if value]
        if named:
            raise ConfigError(f"--out and {named[0]} contradict each other: name one of them")
        model = self.model
        if model is not None and "://" not in model:
            model = str(Path(model).expanduser().absolute())
        out = str(Path(self.out).expanduser().absolute())
        return LocalRank(out=out, tp=self.tp, rank=self.rank, model=model)


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--layers {text!r}, expected numbers such as 1,14")
    return tuple(dict.fromkeys(int(part) for part in parts))
