"""The history of locks in Redis: a stream for all locks of the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from redis.exceptions import ResponseError

from ..._values import clock
from ..._values.event import Event
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig, ListingNotSupported, StoreUnavailable
from ..trail import event_of, is_about, text_of, text_of_task_id
from .keyspace import Keyspace
from .notes import RedisNotes
from .script import Script
from .store_client import StoreClient

__all__ = ["HISTORY_OPTION", "RECORD", "RedisTrail"]

logger = logging.getLogger("django_tasklock")

RECORD = Script("record")
EVENTS = Script("events")

HISTORY_OPTION = "HISTORY"
"""the store's option: how many events are kept; 0: none"""
DEFAULT_EVENTS = 10_000
"""some 3 MB"""
KEPT_SECONDS = 7 * 24 * 3600
"""after so long without an event the history is gone"""
MOST_EVENTS = 1_000_000
"""a gigabyte or so: what is more is a mistake"""
EVENTS_PER_SCRIPT = 1000
"""how many entries one script looks at"""
WRITTEN_PER_SCRIPT = 500
"""all of a second, mostly; a script for so many keeps the server busy for about a millisecond"""
LONGEST_AGO_SECONDS = 3600.0
"""an event is written a moment after it happened: a longer time means that a clock was set"""
REFUSED_PAUSE_SECONDS = 60.0
"""a server that refuses to keep the history is asked again after so long"""
CACHED_EVENTS = 2000
"""events that are kept decoded, for pages that show the newest ones again and again"""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_MS = 253402127999000
"""two days before the end of the year 9999: a date in every time zone"""


class RedisTrail(RedisNotes):
    """The part of a store on Redis that keeps the history.

    The id of an entry is the server's time when it was written. The entry's text begins with the
    number of milliseconds between the event and that time.
    """

    supports_history = True
    known_options = RedisNotes.known_options | {HISTORY_OPTION}

    def __init__(self, settings: StoreSettings, client: StoreClient, keyspace: Keyspace) -> None:
        super().__init__(settings, client, keyspace)
        kept: Any = settings.options.get(HISTORY_OPTION, DEFAULT_EVENTS)
        if type(kept) is not int or not 0 <= kept <= MOST_EVENTS:
            raise InvalidLockConfig(
                f"the option {HISTORY_OPTION} of the lock store {settings.alias!r} is a number of "
                f"events from 0 to {MOST_EVENTS}, not {kept!r}"
            )
        self._kept = kept
        self._refused_until = 0.0
        """on `clock.now`"""
        self._told = False
        """whether the log was told that the server refuses"""

    @property
    def keeps_history(self) -> bool:
        return self._kept > 0

    def record(self, events: Sequence[Event]) -> None:
        if clock.now() < self._refused_until:
            return
        now = datetime.now(timezone.utc)
        for start in range(0, len(events), WRITTEN_PER_SCRIPT):
            args: list[Any] = [self._kept, KEPT_SECONDS]
            for event in events[start : start + WRITTEN_PER_SCRIPT]:
                ago = min(max(0.0, (now - event.at).total_seconds()), LONGEST_AGO_SECONDS)
                args += event.name, f"{int(ago * 1000)} {text_of(event)}"
            self._record(args)

    def _record(self, args: Sequence[Any]) -> None:
        try:
            # Not sent again after a lost reply: an event would be there twice.
            emptied = self.client.run(RECORD, (self.keyspace.history,), args, again=False)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ResponseError):
                self._refused(error)
            raise
        self._told = False
        if emptied:
            logger.warning(
                "the history of the lock store %s was removed, and begins again: its last entry "
                "was more than a day later than the server's clock",
                self.alias,
            )

    def _refused(self, error: StoreUnavailable) -> None:
        """Note that the server answered with an error: a right is missing, its memory is full."""
        self._refused_until = clock.now() + REFUSED_PAUSE_SECONDS
        if not self._told:
            self._told = True
            logger.warning(
                "the history of the lock store %s is not written, its locks are not concerned "
                "(the option HISTORY: 0 turns it off): %s",
                self.alias,
                error,
            )

    def events(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> list[Event]:
        if not self.keeps_history:
            raise ListingNotSupported(
                self.alias, f"show a history of its locks: its option {HISTORY_OPTION} is 0"
            )
        found: list[Event] = []
        wanted = "" if task_id is None else text_of_task_id(task_id)
        begin: Any = "+"
        while len(found) < limit:
            missing = limit - len(found)
            size = EVENTS_PER_SCRIPT if name or wanted else min(EVENTS_PER_SCRIPT, missing)
            args = (begin, size, name or "", missing, wanted)
            last, looked, flat = self.client.run(EVENTS, (self.keyspace.history,), args)
            pairs = zip(flat[::2], flat[1::2], strict=True)
            read = [_event_of(self.alias, written, value) for written, value in pairs]
            found += [
                event for event in read if event is not None and is_about(event, name, task_id)
            ]
            if looked == 0 or (looked < size and len(flat) < 2 * missing):
                break
            begin = b"(" + last
        return found


@lru_cache(CACHED_EVENTS)
def _event_of(alias: str, written: bytes, value: bytes) -> Event | None:
    """The event with this id and this value; None for what somebody else has written."""
    ago, _, text = value.partition(b" ")
    try:
        ago_ms = int(ago) if len(ago) < 8 else -1
    except ValueError:
        return None
    ms = int(written.partition(b"-")[0])
    if not 0 <= ago_ms <= LONGEST_AGO_SECONDS * 1000 or not ago_ms <= ms <= _MAX_MS:
        return None
    return event_of(text, alias, _EPOCH + timedelta(milliseconds=ms - ago_ms))
