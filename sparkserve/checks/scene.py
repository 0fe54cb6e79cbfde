"""What checks look at: the wish, the fleet, and everything that was read, by place.

A place is whatever a reading was taken from: a node of the cluster, ``rank1``, ``head``, the
controller. Texts from a forum name places as they like, so one Spark may have two names here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TypeVar

from sparkserve.facts.reader import Fact, Observation
from sparkserve.facts.wanted import Wanted
from sparkserve.model.cluster import Cluster
from sparkserve.model.facts import NodeFacts, Unobserved
from sparkserve.model.profile import Profile
from sparkserve.model.reading import Reading

F = TypeVar("F", bound=Fact)


@dataclass(frozen=True)
class Scene:
    """What a check may look at."""

    wish: Profile | None
    """None: only texts are known, as where a forum's paste is judged."""
    fleet: Cluster | None
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    """Probes' answers by node name; every node of the cluster is there."""
    named: str | None = None
    """How the user named profile and nodes, as options of a command; None = by the profile's name.
    """
    observations: tuple[Observation, ...] = ()
    """What readers understood, in the order of the readings."""

    @property
    def profile(self) -> Profile:
        """The profile; only for checks that need one, which are not run without."""
        if self.wish is None:
            raise LookupError("this scene has no profile")
        return self.wish

    @property
    def cluster(self) -> Cluster:
        """The cluster; only for checks that need a profile."""
        if self.fleet is None:
            raise LookupError("this scene has no cluster")
        return self.fleet

    @cached_property
    def wanted(self) -> Wanted:
        """Everything that is known of the wish, from whatever text; fields may be unknown."""
        return reduce(Wanted.merged, (fact for _, fact, _ in self.seen(Wanted)), Wanted())

    def nodes(self) -> Iterator[tuple[int, str, NodeFacts]]:
        """(rank, name, probes' facts) of every node that answered, in rank order."""
        for rank, node in enumerate(self.cluster.nodes):
            if self.facts[node.name].values:
                yield rank, node.name, self.facts[node.name]

    def seen(self, kind: type[F]) -> list[tuple[str | None, F, Reading]]:
        """(place, fact, reading) of every reading of one kind, in order."""
        return [
            (place, fact, reading)
            for place, fact, _, reading in self.observations
            if isinstance(fact, kind)
        ]

    def each(self, kind: type[F]) -> list[tuple[str | None, F]]:
        """(place, everything known there about one kind) of every place, in order of sight."""
        by_place: dict[str | None, F] = {}
        for place, fact, _ in self.seen(kind):
            by_place[place] = by_place[place].merged(fact) if place in by_place else fact
        return list(by_place.items())

    def of(self, place: str | None, kind: type[F]) -> F | None:
        """What is known about one kind at exactly this place; None where nothing is."""
        return dict(self.each(kind)).get(place)

    def near(self, place: str | None, kind: type[F]) -> F | None:
        """What is known about one kind at this place under any of its names.

        Where it says nothing itself, a reading without a place counts; then the only other one,
        unless both names tell that it is another Spark.
        """
        known = self.each(kind)
        own = [fact for other, fact in known if self.same_place(place, other)]
        if own:
            return reduce(lambda one, other: one.merged(other), own)
        placeless = [fact for other, fact in known if other is None]
        if placeless:
            return placeless[0]
        if len(known) == 1 and not self.are_apart(place, known[0][0]):
            return known[0][1]
        return None

    def blind(self, kind: type[Fact]) -> list[tuple[str | None, Unobserved]]:
        """Places that were asked about one kind and gave nothing usable by any way."""
        lit = {place for place, _, _ in self.seen(kind)}
        found: dict[str | None, Unobserved] = {}
        for place, fact, of_kind, _ in self.observations:
            if of_kind is kind and isinstance(fact, Unobserved) and place not in lit:
                found.setdefault(place, fact)
        return list(found.items())

    def places(self) -> list[str]:
        """Every named place: the cluster's nodes in rank order, then others in order of sight."""
        names = [node.name for node in self.fleet.nodes] if self.fleet else []
        return list(dict.fromkeys([*names, *(o.place for o in self.observations if o.place)]))

    def rank_of(self, place: str | None) -> int | None:
        """Rank of a place: by the cluster, by the wish's own table, or by its name."""
        if place is None:
            return None
        if self.fleet is not None:
            for rank, node in enumerate(self.fleet.nodes):
                if node.name == place:
                    return rank
        told = (self.wanted.rank_of or {}).get(place)
        return told if told is not None else rank_by_name(place)

    def same_place(self, one: str | None, other: str | None) -> bool:
        """Whether two names mean one Spark; an unnamed place is no other's."""
        if one == other:
            return one is not None
        ranks = self.rank_of(one), self.rank_of(other)
        return ranks[0] is not None and ranks[0] == ranks[1]

    def are_apart(self, one: str | None, other: str | None) -> bool:
        """Whether two names surely mean two Sparks; a name that tells no rank may be any."""
        if self.fleet is not None:
            return one != other
        ranks = self.rank_of(one), self.rank_of(other)
        return None not in ranks and ranks[0] != ranks[1]


def rank_by_name(place: str) -> int | None:
    """Rank that a usual name tells: ``rank1`` and ``TP1`` count from 0, ``node2`` from 1."""
    if re.fullmatch(r"(?i)head|master|rank[-_ ]?0", place):
        return 0
    if found := re.search(r"(?i)(?:^|[^a-z])(?:rank|tp)[-_ ]?(\d{1,2})$", place):
        return int(found[1])
    if found := re.fullmatch(r"(?i)(?:node|spark|dgx|gx|gb)[a-z]*[-_ ]?0*([1-9]\d?)", place):
        return int(found[1]) - 1
    if found := re.fullmatch(r"(?i)worker[-_ ]?0*([1-9]\d?)", place):
        return int(found[1])
    return None


def evidence(readings: Sequence[Reading]) -> tuple[str, ...]:
    """How readings are named below a finding."""
    return tuple(reading.label or reading.source for reading in readings)
