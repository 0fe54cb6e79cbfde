"""Whether all ranks run what they were told: a pure judgement over their install reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkserve.model.engine_spec import InstallReport


def deciding(reports: Sequence[InstallReport]) -> InstallReport | None:
    """The report of the process that owns the model, or None while it has not reported."""
    return next((report for report in reports if report.role == "scheduler"), None)


def refusal(reports: Sequence[InstallReport]) -> InstallReport | None:
    """The first report of a process that refused, or None."""
    return next((report for report in reports if report.status == "refused"), None)


def disagreement(by_rank: Mapping[int, InstallReport], told: str) -> str | None:
    """What differs between the ranks' reports, in one sentence; None when all agree.

    by_rank: the deciding report of every rank. told: agreement of the specs we wrote.
    """
    for rank, report in sorted(by_rank.items()):
        if report.told != told:
            return f"rank {rank} read another spec ({report.told[:12]}, expected {told[:12]})"
    reference_rank, reference = min(by_rank.items())
    for rank, report in sorted(by_rank.items()):
        if report.engine_version != reference.engine_version:
            return (
                f"rank {rank} runs {report.engine} {report.engine_version}, "
                f"rank {reference_rank} {reference.engine_version}"
            )
        if report.adapters != reference.adapters:
            theirs = {adapter.name: adapter for adapter in report.adapters}
            ours = {adapter.name: adapter for adapter in reference.adapters}
            odd = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
            return f"rank {rank} and rank {reference_rank} differ in {', '.join(sorted(odd))}"
    return None
