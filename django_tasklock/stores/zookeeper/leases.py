"""The leases that this process has taken: the ones whose ends it is responsible for.

ZooKeeper has no ttl for a node that holds a lock, and no clock for its clients. So nobody deletes
the node of an overdue lease by a clock that is not its own:

* The process that took or extended the lease deletes the node when the lease is over by its own
  clock, by which the lease's holder counts too.
* If the process cannot, its session ends, and the server deletes the node.
* Whoever wants the lock and has seen the node unchanged for its whole ttl, by its own clock,
  deletes it: the holder's ttl began before the node was seen, so it is over. See `Sightings`.

Each of them deletes the node only in the version that it has seen. An extension that comes first
makes a new version; one that comes later finds no node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NoNodeError

from ..._values import clock

__all__ = ["Leases", "Sightings", "Taken"]

RETRY_SECONDS = 0.5
"""before the node of an overdue lease is deleted again, after a try that failed"""
ANSWER_SECONDS = 5.0
MOST_SIGHTINGS = 4096
"""locks that a process keeps in mind because somebody else held them when it wanted them"""


@dataclass(slots=True)
class Taken:
    """A lease that this process has taken or extended."""

    path: str
    record: dict[str, Any]
    """what is in its node"""
    version: int
    """of the node's data"""
    ends: float
    """on `clock.now`"""


class Leases:
    """The leases of one session, by token."""

    def __init__(self) -> None:
        self._taken: dict[str, Taken] = {}
        self._retry = 0.0

    def get(self, token: str | None) -> Taken | None:
        """The lease, whether or not it is over."""
        return self._taken.get(token) if token is not None else None

    def keep(self, token: str, taken: Taken) -> None:
        """Delete its node when it is over."""
        self._taken[token] = taken

    def drop(self, token: str) -> None:
        """Its node is gone, or somebody else's responsibility."""
        self._taken.pop(token, None)

    def forget(self) -> None:
        """The session is over."""
        self._taken = {}

    def any_left(self) -> bool:
        """Whether there is a lease that is not over."""
        return any(taken.ends > clock.now() for taken in list(self._taken.values()))

    def next_end(self, now: float) -> float:
        """When there is something to do, on `clock.now`."""
        ends = min([taken.ends for taken in list(self._taken.values())], default=math.inf)
        return max(ends, self._retry)

    def is_due(self, now: float) -> bool:
        """Whether a lease is over, and its node to be deleted."""
        if self.next_end(now) > now:
            return False
        self._retry = now + RETRY_SECONDS
        return True

    def end_overdue(self, client: Any) -> None:
        """Delete the nodes of the leases that are over. Raises what kazoo raises."""
        now = clock.now()
        over = [(token, taken) for token, taken in list(self._taken.items()) if taken.ends <= now]
        asked = [
            (token, taken, client.delete_async(taken.path, taken.version)) for token, taken in over
        ]
        for token, taken, result in asked:
            try:
                result.get(timeout=ANSWER_SECONDS)
            except (NoNodeError, BadVersionError):
                pass  # Released meanwhile, or extended, perhaps by another process.
            if self._taken.get(token) is taken and taken.ends <= now:
                self.drop(token)
        self._retry = 0.0


class Sightings:
    """Since when this process has seen the same version of what holds a lock."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}

    def seconds(self, lock: str, zxid: int) -> float:
        """For how long the lock's first node was seen as the transaction ``zxid`` left it."""
        now = clock.now()
        seen = self._since.get(lock)
        if seen is not None and seen[0] == zxid:
            return now - seen[1]
        self._since.pop(lock, None)
        self._since[lock] = zxid, now
        if len(self._since) > MOST_SIGHTINGS:
            # The oldest.
            self._since.pop(next(iter(self._since)), None)
        return 0.0
