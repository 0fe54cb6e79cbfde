"""``sparkserve verify``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from sparkserve.cli import interrupts
from sparkserve.cli.command import command
from sparkserve.cli.doors import open_doors, this_python
from sparkserve.cli.options import OptionGroup, TargetOptions
from sparkserve.cli.shard_options import ShardsOptions
from sparkserve.errors import ConfigError
from sparkserve.report.console import Console

_EXAMPLES = (
    "sparkserve verify --engram --profile my.toml",
    "sparkserve verify --engram --full --profile my.toml",
    "sparkserve verify --engram --model /data/v41 --out /data/rows --tp 4 --rank 0",
    "sparkserve verify --engram --strict --json | jq -c 'select(.kind == \"result\")'",
)


@dataclass(frozen=True)
class VerifyOptions(OptionGroup):
    """What verify alone knows."""

    engram: Annotated[bool, typer.Option("--engram", help="Check packed Engram shards.")] = False
    full: Annotated[
        bool, typer.Option("--full", help="Every row; else a sample of 1,037 per shard.")
    ] = False
    sample: Annotated[bool, typer.Option("--sample", help="The sample, as without it.")] = False
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where something cannot be known, too.")
    ] = False


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "verify", examples=_EXAMPLES, ndjson=True, steps=True)(verify)


def verify(
    console: Console, options: VerifyOptions, target: TargetOptions, shards: ShardsOptions
) -> int:
    """Check that what lies on the nodes is what a profile serves.

    --engram compares each rank's shards with their manifest and, where the checkpoint is at
    hand, with the checkpoint, row by row through the reader that serves. It is the one part that
    this version can verify.
    """
    from sparkserve.ops import verify as use_case
    from sparkserve.report.launch_view import finish
    from sparkserve.report.pack_state import observer_for
    from sparkserve.report.verify_view import verify_answer

    if not options.engram:
        raise ConfigError(
            "name what to verify; this version verifies packed Engram shards",
            hint="sparkserve verify --engram",
        )
    if options.full and options.sample:
        raise ConfigError("--full and --sample contradict each other: name one of them")
    interrupts.say_at_second("left at once; the nodes stop by themselves")
    request = replace(
        shards.request(target, python=this_python(), model_needed=False),
        verify="full" if options.full else "sample",
    )
    doors = open_doors()
    with observer_for(console) as view:
        result = use_case.run(request, doors, view, strict=options.strict)
    finish(console, doors.now(), verify_answer(result, width=console.width))
    return result.exit_code
