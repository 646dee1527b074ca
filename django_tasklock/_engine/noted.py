"""What happened to a lock, from the moment that it is noted until it is an event.

Noting an event makes a tuple and nothing else. The thread that writes the history does the rest. It
makes one event of refusals that say the same: callers that ask again and again then cost little,
and leave room for other events.
"""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from .._values.event import Event, Kind
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.owner_record import HELD_BY, recorded
from ..stores.base import BaseStore

__all__ = ["MOST_GATHERED", "Gathered", "Noted"]

MOST_GATHERED = 500
"""different refusals of a second that are written: to encode and send each takes a fifth of the
time of a refused call"""

_SHOWN = (
    "host", "pid", "task", "task_id", "thread", "held_by", "reason", "mark", "slots", "waits_for",
    "adoptions",
)  # fmt: skip
"""the fields of an owner that are for people"""
_shown_of = attrgetter(*_SHOWN)


class Noted(NamedTuple):
    """An event as it was noted; the fields are those of `Event`.

    ``at`` is in seconds since the epoch. ``owner`` may be the owner's record: to decode it takes a
    while, and so does reading the `LockInfo` of a refusal's ``holder``.
    """

    store: BaseStore
    kind: Kind
    name: str
    at: float
    owner: Mapping[str, Any] | Owner
    holder: LockInfo | Owner | None
    seconds: float | None
    by: str | None
    reason: str | None


class _Several:
    """An event that happened several times: what was noted last, and what differs."""

    __slots__ = ("count", "last", "longest", "number", "since")

    def __init__(self, first: Noted, number: int) -> None:
        self.last, self.count, self.number = first, 1, number
        self.since, self.longest = first.at, first.seconds

    def add(self, noted: Noted, number: int) -> None:
        """``number`` is larger than that of every event before."""
        self.last, self.number = noted, number
        self.count += 1
        if noted.seconds is not None:
            self.longest = max(self.longest or 0.0, noted.seconds)

    def event(self) -> Event:
        last, holder = self.last, self.last.holder
        if isinstance(holder, LockInfo):
            holder = holder.owner
        return Event(
            last.kind, last.name, last.store.alias, _moment(last.at), _for_people(last.owner),
            None if holder is None else _for_people(holder), self.longest,
            None if last.by is None else recorded(last.by),
            None if last.reason is None else recorded(last.reason),
            self.count, None if self.count == 1 else _moment(min(self.since, last.at)),
        )  # fmt: skip


class Gathered:
    """Events of one alias that are to be written. Not for several threads at a time."""

    def __init__(self) -> None:
        self._found: dict[Hashable, _Several] = {}
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, noted: Noted) -> bool:
        """Keep what was noted. False: it is a refusal, and there are too many different ones."""
        self._number += 1
        key = _key_of(noted)
        several = self._found.get(key)
        if several is not None:
            several.add(noted, self._number)
        elif noted.kind == "refused" and len(self._found) >= MOST_GATHERED:
            return False
        else:
            self._found[key] = _Several(noted, self._number)
        return True

    def take(self) -> builtins.list[tuple[BaseStore, builtins.list[Event]]]:
        """Return the events by their stores, the oldest first, and forget them.

        Mostly it is one store; after a change of the settings another one has the same alias.
        """
        found, self._found = self._found, {}
        by_store: dict[BaseStore, builtins.list[Event]] = {}
        for several in sorted(found.values(), key=lambda several: several.number):
            by_store.setdefault(several.last.store, []).append(several.event())
        return list(by_store.items())


def _key_of(noted: Noted) -> Hashable:
    """What events have in common that become one. Those of most kinds become none."""
    if noted.kind != "refused":
        return object()
    owner, holder = noted.owner, noted.holder
    lease = holder.token or holder.digest if isinstance(holder, LockInfo) else None
    if isinstance(owner, Owner):
        return noted.store, noted.name, lease, owner.task, owner.task_id, owner.held_by
    read = owner.get
    return noted.store, noted.name, lease, read("task"), read("task_id"), read(HELD_BY)


def _for_people(owner: Mapping[str, Any] | Owner) -> Owner:
    """An owner without what is for programs alone: it takes half of the room."""
    if isinstance(owner, Owner):
        return _shown(*_shown_of(owner))
    return _shown(*map(owner.get, _SHOWN))


@lru_cache(128)
def _shown(*fields: Any) -> Owner:
    # Mostly the same few ask, and hold: to make an owner costs much more than to look it up.
    return Owner(**dict(zip(_SHOWN, fields, strict=True)))


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.utc)
