"""What the history says of the last hour: which locks were contended for, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from .._engine.service import LockService
from .._values.event import Event
from .._values.owner import Owner
from .._values.slots import base_of

__all__ = ["EVENTS_READ", "LAST_SECONDS", "Contended", "Past", "contended", "counts", "past_hour"]

LAST_SECONDS = 3600.0
EVENTS_READ = 5000
"""events of a store that one look reads at most, the newest ones: a few round trips"""


@dataclass(frozen=True, slots=True)
class Past:
    """The events of the last hour, the newest first, and how far back they reach.

    ``until``: the moment of the look. ``reaches``: the time of the oldest event that was read, if
    it lies within the hour: what happened before that may be forgotten. None: the whole hour is
    there, or nothing has ever happened.
    """

    events: Sequence[Event]
    until: datetime
    reaches: datetime | None


@dataclass(slots=True)
class Contended:
    """One lock that others wanted. The permits of a name (``slots=N``) count as one lock.

    ``refused`` callers got nothing, ``waited`` ones got it after more than a second; ``longest`` is
    what one of them waited, in seconds. ``last``: who held it at the newest of these events.
    """

    store: str
    name: str
    refused: int = 0
    waited: int = 0
    longest: float = 0.0
    lost: int = 0
    cleared: int = 0
    last: Owner | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return {
            "name": self.name,
            "store": self.store,
            "refused": self.refused,
            "waited": self.waited,
            "longest_wait": self.longest,
            "lost": self.lost,
            "cleared": self.cleared,
            "last_holder": None if self.last is None else self.last.as_dict(),
        }


def past_hour(service: LockService, limit: int = EVENTS_READ) -> Past:
    """Return what is kept of the last hour, of at most ``limit`` events.

    Raises `ListingNotSupported` on a store that keeps no history, and `StoreUnavailable`.
    """
    # Not `service.history`, which writes this process's own events first: another round trip.
    read = service.store.events(limit=limit)
    until = datetime.now(timezone.utc)
    begin = until - timedelta(seconds=LAST_SECONDS)
    oldest = min((event.at for event in read), default=begin)
    return Past(
        [event for event in read if event.at >= begin], until, oldest if oldest > begin else None
    )


def contended(events: Iterable[Event]) -> list[Contended]:
    """Return the locks that somebody was refused or had to wait for, the most wanted one first.

    ``events`` are of any stores, those of each with the newest first.
    """
    found: dict[tuple[str, str], Contended] = {}
    for event in events:
        name = base_of(event.name, event.owner.slots)
        row = found.setdefault((event.store, name), Contended(event.store, name))
        if event.kind in ("refused", "waited"):
            row.longest = max(row.longest, event.seconds or 0.0)
        row.refused += event.count * (event.kind == "refused")
        row.waited += event.count * (event.kind == "waited")
        row.lost += event.count * (event.kind == "lost")
        row.cleared += event.count * (event.kind == "cleared")
        if row.last is None and event.kind not in ("given up", "skipped"):
            row.last = event.holder if event.kind == "refused" else event.owner
    wanted = [row for row in found.values() if row.refused or row.waited]
    return sorted(wanted, key=lambda row: (-row.refused - row.waited, row.name, row.store))


def counts(past: Past, parts: int) -> list[int]:
    """Return how many events each part of the hour has, the oldest part first.

    An event that happened several times counts as often. One that the clock of a server puts after
    now counts as one of now.
    """
    found = [0] * parts
    for event in past.events:
        ago = max(0.0, (past.until - event.at).total_seconds())
        found[parts - 1 - min(parts - 1, int(ago * parts / LAST_SECONDS))] += event.count
    return found
