"""The GID index of each rank, as a launch takes it: refused where there is none, and told."""

from __future__ import annotations

from collections.abc import Sequence

from sparkserve.errors import CheckFailed, ExitCode
from sparkserve.model.finding import Finding
from sparkserve.model.place import Place
from sparkserve.ops.doors import Emitter
from sparkserve.planning.gids import GidPlan

_CHECK = "RING.ROCE_GID"


def refuse_unplanned(plans: Sequence[GidPlan], findings: Sequence[Finding]) -> None:
    """End the launch where a rank's index is not known, also where its tables could not be read.

    Raises:
        CheckFailed: a node has no index that works on all its selected ports.
    """
    bad = {plan.node: plan for plan in plans if plan.problem}
    if not bad:
        return
    raise CheckFailed(
        "\n".join(f"{plan.node}: {plan.told}" for plan in bad.values()),
        findings=[f for f in findings if f.check_id == _CHECK and f.node in bad],
        exit_code=ExitCode.UNFIT,
        hint=next(iter(bad.values())).remedy,
    )


def with_index(place: Place, plans: Sequence[GidPlan]) -> Place:
    """The place with the index of its own node."""
    index = next((plan.index for plan in plans if plan.node == place.name), None)
    return place.model_copy(update={"gid_index": index})


def tell(plans: Sequence[GidPlan], emitter: Emitter) -> None:
    """Every node's index as a notice, with the usable set of every port."""
    for plan in plans:
        data = {"gid_index": plan.index, "ports": list(plan.member_lines)}
        message = "; ".join((f"{plan.node}: {plan.told}", *plan.member_lines))
        emitter.emit("notice", message, node=plan.node, data=data)
