"""``sparkserve pack``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from sparkserve.cli import interrupts
from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors, this_python
from sparkserve.cli.options import OptionGroup, TargetOptions
from sparkserve.cli.shard_options import ShardsOptions, Verify
from sparkserve.report.console import Console

_EXAMPLES = (
    "sparkserve pack --profile my.toml --dry-run",
    "sparkserve pack --profile my.toml",
    "sparkserve pack --profile my.toml --source /mnt/nfs/DeepSeek-V4.1-Flash",
    "sparkserve pack --model /data/v41 --out /data/engram --tp 4 --rank 0",
)


@dataclass(frozen=True)
class PackOptions(OptionGroup):
    """What pack alone knows."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show the plan; change nothing.")
    ] = False
    verify: Annotated[
        Verify,
        typer.Option(
            "--verify",
            metavar="none|sample|full",
            help="What is compared with the source before a shard counts; else sample.",
        ),
    ] = Verify.sample
    replace: Annotated[bool, typer.Option("--replace", help="Pack anew whatever stands there.")] = (
        False
    )
    reserve_gib: Annotated[
        float,
        typer.Option("--reserve-gib", min=0, metavar="GIB", help="Space to leave free; else 8."),
    ] = 8.0
    chunk_mib: Annotated[
        int,
        typer.Option(
            "--chunk-mib", min=1, max=256, metavar="MIB", help="Size of a read or write; else 64."
        ),
    ] = 64


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "pack", examples=_EXAMPLES, ndjson=True, steps=True)(pack)


def pack(
    console: Console, options: PackOptions, target: TargetOptions, shards: ShardsOptions
) -> int:
    """Pack each rank's Engram rows onto the NVMe of its node.

    All nodes at once; with --model, one rank on this machine. Whole shards are left alone, and
    the same command goes on from where an interrupted one stopped.
    """
    from sparkserve.ops import pack as use_case
    from sparkserve.report.launch_view import finish
    from sparkserve.report.pack_state import observer_for
    from sparkserve.report.pack_view import plan_answer, result_answer

    interrupts.say_at_second(
        "left at once; the nodes stop by themselves\nhint: the same command goes on from there"
    )
    request = replace(
        shards.request(target, python=this_python(), model_needed=True),
        verify=options.verify.value,
        reserve_gib=options.reserve_gib,
        chunk_mib=options.chunk_mib,
        replace=options.replace,
        dry_run=options.dry_run,
    )
    doors = open_doors()
    with observer_for(console) as view:
        result = use_case.run(request, doors, view)
    answer = plan_answer if result.dry_run else result_answer
    finish(console, doors.now(), answer(result, width=console.width))
    return result.exit_code
