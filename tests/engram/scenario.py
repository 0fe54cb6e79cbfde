"""A random life of requests, as the engine's scheduler batches it: plain data for both hashers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparkserve.engram.hashing import Array
from sparkserve.engram.history import Batch, RequestHistory, predecessors_of

SLOTS = 6
NO_PLACE, SOME_PLACE = 0, 7
LOOKBACK = 3


@dataclass
class Step:
    """One batch, and what the hash of each of its tokens must be looked up by."""

    mode: str
    """``extend``, ``decode``, ``verify`` or ``idle``."""
    tokens: list[int]
    positions: list[int]
    slots: list[int]
    cache_places: list[int]
    lengths: list[int] = field(default_factory=list)
    predecessors: list[list[int]] | None = None
    accepted: list[int] = field(default_factory=list)
    truth: list[tuple[int, int] | None] = field(default_factory=list)
    """(text, position) of every token; None for padding, whose rows nobody reads."""

    def run(self, history: RequestHistory) -> Array:
        """Do the step with the reference."""
        batch = Batch(
            np.array(self.tokens, dtype=np.int64),
            np.array(self.positions, dtype=np.int64),
            np.array(self.slots, dtype=np.int64),
            np.array(self.cache_places, dtype=np.int64),
        )
        if self.mode == "idle":
            return history.idle(len(self.tokens))
        if self.mode == "decode":
            return history.decode(batch)
        if self.mode == "extend":
            before = None if self.predecessors is None else np.array(self.predecessors)
            return history.extend(batch, np.array(self.lengths), before)
        ids = history.verify(batch)
        block = np.array(self.tokens).reshape(len(self.slots), -1)
        history.commit_after_verify(block, batch.slots, np.array(self.accepted))
        return ids


class Life:
    """Requests that come, are prefilled in chunks, generate, are verified, and go."""

    def __init__(self, seed: int, tokens: int, image_token: int | None) -> None:
        self._random = random.Random(seed)
        self._tokens = tokens
        self._image = image_token
        self.texts: list[list[int]] = []
        """Everything each request has said so far; grows."""
        self._active: dict[int, int] = {}
        """Slot -> its text."""
        self._done: dict[int, int] = {}
        """Text -> how many of its tokens were computed."""

    def steps(self, count: int) -> list[Step]:
        """The next batches."""
        return [self._step() for _ in range(count)]

    def _step(self) -> Step:
        dice = self._random.random()
        if dice < 0.05:
            return Step("idle", [0] * 3, [0] * 3, [], [], truth=[None] * 3)
        if dice < 0.4 or len(self._active) < 2:
            return self._extend()
        if dice < 0.5:
            self._active.pop(self._random.choice(list(self._active)))
            return self._extend()
        return self._decode() if dice < 0.75 else self._verify()

    def _token(self) -> int:
        if self._image is not None and self._random.random() < 0.1:
            # The scheduler stands ids beyond every vocabulary in for the parts of an image.
            return self._random.choice([self._image, 1_000_000, 3_000_000_000])
        return self._random.randrange(self._tokens)

    def _word(self) -> int:
        """A token that a model may say: no part of an image."""
        while True:
            token = self._random.randrange(self._tokens)
            if token != self._image:
                return token

    def _extend(self) -> Step:
        free = [slot for slot in range(SLOTS) if slot not in self._active]
        chosen = self._random.sample(sorted(self._active), k=min(1, len(self._active)))
        if free:
            slot = self._random.choice(free)
            self._active[slot] = len(self.texts)
            self._done[len(self.texts)] = 0
            self.texts.append([])
            chosen.append(slot)
        step = Step("extend", [], [], chosen, [])
        before = []
        for slot in chosen:
            text = self._active[slot]
            start, length = self._done[text], self._random.choice([0, 1, 2, 3, 9])
            new = [self._token() for _ in range(length)]
            known = self.texts[text][:start]
            before.append(predecessors_of(np.array(known, dtype=np.int64), start, LOOKBACK))
            self.texts[text] = [*known, *new]
            step.tokens += new
            step.positions += range(start, start + length)
            step.truth += [(text, place) for place in range(start, start + length)]
            step.lengths.append(length)
            self._done[text] = start + length
        step.cache_places = [SOME_PLACE] * len(step.tokens)
        if self._random.random() < 0.5:
            step.predecessors = [row.tolist() for row in before]
        self._pad(step, self._random.choice([0, 0, 4]))
        return step

    def _decode(self) -> Step:
        slots = self._random.sample(sorted(self._active), k=len(self._active))
        step = Step("decode", [], [], slots, [])
        for slot in slots:
            text = self._active[slot]
            self._say(step, text, [self._word()])
            self._done[text] += 1
        # Padded requests of a CUDA graph point at a live slot and at no place in the cache.
        for _ in range(self._random.choice([0, 0, 2])):
            step.slots = [*step.slots, slots[0]]
            self._pad(step, 1)
        return step

    def _verify(self) -> Step:
        block = self._random.choice([1, 2, 6])
        slots = self._random.sample(sorted(self._active), k=min(2, len(self._active)))
        step = Step("verify", [], [], slots, [])
        for slot in slots:
            text = self._active[slot]
            self._say(step, text, [self._word() for _ in range(block)])
            accepted = self._random.randrange(1, block + 1)
            self._done[text] += accepted
            step.accepted.append(accepted)
        return step

    def _say(self, step: Step, text: int, new: list[int]) -> None:
        start = self._done[text]
        # What an earlier block proposed and lost is forgotten.
        self.texts[text] = [*self.texts[text][:start], *new]
        step.tokens += new
        step.positions += range(start, start + len(new))
        step.cache_places += [SOME_PLACE] * len(new)
        step.truth += [(text, place) for place in range(start, start + len(new))]

    def _pad(self, step: Step, count: int) -> None:
        step.tokens += [0] * count
        step.positions += [0] * count
        step.cache_places += [NO_PLACE] * count
        step.truth += [None] * count


def play(
    history: RequestHistory, life: Life, steps: int
) -> list[tuple[Step, Any, list[list[int]]]]:
    """(step, its row ids, the texts as they were then) of a whole life."""
    seen = []
    for _ in range(steps):
        (step,) = life.steps(1)
        ids = step.run(history)
        seen.append((step, ids, [list(text) for text in life.texts]))
    return seen
