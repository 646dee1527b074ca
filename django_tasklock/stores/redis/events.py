"""The history of locks in Redis: a stream for all locks of a store."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from redis.exceptions import ResponseError

from ..._values.lock_info import Event
from ...conf import StoreSettings
from ...exceptions import ListingNotSupported, StoreUnavailable
from ..event_text import event_of, is_about, text_of, text_of_task_id
from .connections import Client

logger = logging.getLogger("django_tasklock")

# The store's option: how many events are kept; 0: none.
HISTORY_OPTION = "HISTORY"
# Some 3 MB.
DEFAULT_EVENTS = 10_000
# A gigabyte or so: what is more is a mistake.
MOST_EVENTS = 1_000_000
# After so long without an event the history is gone.
KEPT_SECONDS = 7 * 24 * 3600
# How many events one round trip reads.
EVENTS_AT_ONCE = 1000


class EventStream:
    """The events of a store, in a stream."""

    def __init__(self, settings: StoreSettings, client: Client, key: bytes) -> None:
        """``key``: of the stream. Raises `InvalidLockConfig` for a wrong option."""
        # How many events are kept.
        self.kept: int = settings.option(
            HISTORY_OPTION,
            DEFAULT_EVENTS,
            lambda given: type(given) is int and 0 <= given <= MOST_EVENTS,
            f"a number of events from 0 to {MOST_EVENTS}",
        )
        # Whether the log was told that the server refuses.
        self._told = False
        self._alias, self._client, self._key = settings.alias, client, key

    def record(self, events: Sequence[Event]) -> None:
        """`BaseStore.record`."""
        add = ("XADD", self._key, "MAXLEN", "~", self.kept, "*")
        written: list[Sequence[Any]] = [
            (*add, "at", repr(event.at.timestamp()), "event", text_of(event)) for event in events
        ]
        try:
            self._client.commands([*written, ("EXPIRE", self._key, KEPT_SECONDS)], once=True)
        except StoreUnavailable as error:
            if not self._told and isinstance(error.__cause__, ResponseError):
                self._told = True
                logger.warning(
                    "the history of the lock store %s is not written, but its locks work (the "
                    "option HISTORY: 0 turns it off): %s",
                    self._alias,
                    error,
                )
            raise

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> list[Event]:
        """`BaseStore.events`."""
        if not self.kept:
            raise ListingNotSupported(
                self._alias, f"show a history of its locks: its option {HISTORY_OPTION} is 0"
            )
        wanted = b"" if task_id is None else text_of_task_id(task_id).encode()
        found: list[Event] = []
        for at, text in self._texts(EVENTS_AT_ONCE if name or wanted else limit):
            if len(found) >= limit:
                break
            if wanted in text:
                event = event_of(text, self._alias, at)
                if event is not None and is_about(event, name, task_id):
                    found.append(event)
        return found

    def _texts(self, size: int) -> Iterator[tuple[bytes, bytes]]:
        """The time and the text of each event, the newest first, ``size`` in a round trip."""
        before, size = b"+", max(1, min(size, EVENTS_AT_ONCE))
        while True:
            entries = self._client.command("XREVRANGE", self._key, before, "-", "COUNT", size)
            for identity, fields in entries:
                before = b"(" + identity
                # Anybody may have written others.
                if len(fields) == 4 and fields[0] == b"at" and fields[2] == b"event":
                    yield fields[1], fields[3]
            if len(entries) < size:
                return
