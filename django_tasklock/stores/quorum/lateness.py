"""Whether a member is worth a moment more."""

from __future__ import annotations

__all__ = ["Lateness"]

FIRST_SECONDS = 0.01
LONGEST_SECONDS = 1.0
GROWTH = 4


class Lateness:
    """For how long no caller waits for a member, once enough others have answered.

    A member that was late once is not waited for in the next moments; one that always is, because
    it is far away or hangs, is given another chance once in a second.
    """

    __slots__ = ("_seconds", "_until")

    def __init__(self) -> None:
        self._seconds = self._until = 0.0

    def begin(self, now: float) -> None:
        """It was late. ``now`` is a moment on `clock.now`."""
        self._seconds = min(LONGEST_SECONDS, max(FIRST_SECONDS, GROWTH * self._seconds))
        self._until = now + self._seconds

    def end(self) -> None:
        """It was in time."""
        if self._seconds:
            self._seconds = self._until = 0.0

    def lasts(self, now: float) -> bool:
        """Whether it is not waited for at a moment."""
        return self._until > now
