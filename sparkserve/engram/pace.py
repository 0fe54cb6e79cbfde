"""How fast bytes go by, and when that is too slow for any disk or network worth using."""

from __future__ import annotations

from collections import deque

SLOW_BYTES_PER_S = 50e6
SLOW_WINDOW_S = 30.0
_RATE_WINDOW_S = 5.0


class Pace:
    """Takes (time, bytes so far) and answers with rates; knows no clock of its own."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._warned = False

    def step(self, now_s: float, done_bytes: int) -> None:
        """Note how far it is; times do not run backwards."""
        self._points.append((now_s, done_bytes))
        # One point older than the longest window stays, so that the window is always covered.
        while len(self._points) > 2 and self._points[1][0] <= now_s - SLOW_WINDOW_S:
            self._points.popleft()

    @property
    def bytes_per_s(self) -> float:
        """Rate of the last seconds; 0 before there are two points."""
        return self._rate_since(_RATE_WINDOW_S) or 0.0

    def slow(self) -> float | None:
        """The rate, once: when it stayed below 50 MB/s for 30 s; else None."""
        if self._warned or not self._points:
            return None
        if self._points[-1][0] - self._points[0][0] < SLOW_WINDOW_S:
            return None
        rate = self._rate_since(SLOW_WINDOW_S)
        if rate is None or rate >= SLOW_BYTES_PER_S:
            return None
        self._warned = True
        return rate

    def _rate_since(self, window_s: float) -> float | None:
        if len(self._points) < 2:
            return None
        now_s, done_bytes = self._points[-1]
        first = self._points[0]
        for point in self._points:
            if point[0] > now_s - window_s:
                break
            first = point
        if now_s <= first[0]:
            return None
        return (done_bytes - first[1]) / (now_s - first[0])
