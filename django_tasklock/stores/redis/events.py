"""The history of locks in Redis: a stream for all locks of a store, and one for rare events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from ..._values.lock_info import RARE, Event
from ...conf import StoreSettings
from ...exceptions import ListingNotSupported
from ..event_text import event_of, is_about, text_of, text_of_task_id
from .connections import Client
from .keys import Keys

# The store's option: how many events each stream keeps; 0: none.
HISTORY_OPTION = "HISTORY"
# Some 3 MB.
DEFAULT_EVENTS = 10_000
# A gigabyte or so: what is more is a mistake.
MOST_EVENTS = 1_000_000
# After so long without an event the history is gone.
KEPT_SECONDS = 7 * 24 * 3600
# How many events one round trip reads.
EVENTS_AT_ONCE = 1000


class EventStreams:
    """The events of a store: a flood of others pushes no rare one out."""

    def __init__(self, settings: StoreSettings, client: Client, keys: Keys) -> None:
        """Raises `InvalidLockConfig` for a wrong option."""
        # How many events are kept.
        self.kept: int = settings.option(
            HISTORY_OPTION,
            DEFAULT_EVENTS,
            lambda given: type(given) is int and 0 <= given <= MOST_EVENTS,
            f"a number of events from 0 to {MOST_EVENTS}",
        )
        self._alias, self._client, self._keys = settings.alias, client, (keys.history, keys.rare)

    def record(self, events: Sequence[Event]) -> None:
        """`BaseStore.record`."""
        commands: list[Sequence[Any]] = []
        for event in events:
            add = "XADD", self._keys[event.kind in RARE], "MAXLEN", "~", self.kept, "*"
            commands.append((*add, "at", repr(event.at.timestamp()), "event", text_of(event)))
        commands += (("EXPIRE", key, KEPT_SECONDS) for key in self._keys)
        self._client.commands(commands, once=True)

    def events(self, name: str | None, task_id: str | None, limit: int) -> list[Event]:
        """`BaseStore.events`."""
        if not self.kept:
            raise ListingNotSupported(
                self._alias, f"show a history of its locks: its option {HISTORY_OPTION} is 0"
            )
        wanted = b"" if task_id is None else text_of_task_id(task_id).encode()
        size = EVENTS_AT_ONCE if name or wanted else limit
        found: list[Event] = []
        for key in self._keys:
            kept = self._kept(key, wanted, size)
            found += islice((each for each in kept if is_about(each, name, task_id)), limit)
        return sorted(found, key=attrgetter("at"), reverse=True)[:limit]

    def _kept(self, key: bytes, wanted: bytes, size: int) -> Iterator[Event]:
        """The events whose text has what is ``wanted``, the newest first, ``size`` in a round
        trip."""
        before, size = b"+", max(1, min(size, EVENTS_AT_ONCE))
        while True:
            entries = self._client.command("XREVRANGE", key, before, "-", "COUNT", size)
            for identity, fields in entries:
                before = b"(" + identity
                # Anybody may have written others.
                ours = len(fields) == 4 and fields[0] == b"at" and fields[2] == b"event"
                if ours and wanted in fields[3]:
                    event = event_of(fields[3], self._alias, fields[1])
                    if event is not None:
                        yield event
            if len(entries) < size:
                return
