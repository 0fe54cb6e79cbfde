"""What the guards of a serving run see and do not end."""

from __future__ import annotations

from collections.abc import Sequence

from sparkserve.model.finding import Finding
from sparkserve.model.node_state import RankStatus
from sparkserve.model.profile import Profile


def judge(profile: Profile, ranks: Sequence[RankStatus]) -> tuple[Finding, ...]:
    """One finding per rank whose guard sees a wedge."""
    return tuple(
        Finding(
            code="ENG_SPIN_WEDGE",
            check_id="PROGRESS.WEDGE",
            title="a busy GPU computes",
            node=rank.node,
            outcome="fail",
            severity="error",
            fault_class="engine",
            verdict="FAIL",
            observed=f"rank {rank.rank}: {rank.notice}",
            expected=f"tokens, or a power of at least {profile.limits.wedge_power_w:g} W",
            why="the ranks spin in a collective: /health answers 200 and no token comes any more",
            fix="sparkserve stop, then sparkserve launch; limits.wedge_action = stop ends such a "
            "run by itself",
        )
        for rank in ranks
        if rank.notice
    )
