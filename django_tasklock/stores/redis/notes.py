"""Notes and reservations in Redis: each one is a key that expires by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._values.lock_info import LockInfo
from ...conf import StoreSettings
from ..base import LISTED_KEY_PREFIX, BaseStore, Note, Reserved
from .client import milliseconds
from .keyspace import Keyspace
from .record_reader import RecordReader
from .script import Script
from .server_client import Call
from .store_client import StoreClient

__all__ = [
    "RESERVATIONS_PER_SCRIPT",
    "RESERVATION_KEYS",
    "RedisNotes",
    "decoded_keys",
    "live_of",
    "seconds",
    "texts_call",
]

RESERVE = Script("reserve")
UNRESERVE = Script("unreserve")
RESERVATION_KEYS = Script("reservation_keys")
RESERVATION_TEXTS = Script("reservation_texts")

RESERVATIONS_PER_SCRIPT = 1000
"""how many reservations one script reads"""
MAX_RESERVED_TEXT_BYTES = 1024
"""Celery's ids are shorter, and what is longer was written by somebody else"""


class RedisNotes(BaseStore):
    """The part of `RedisStore` that keeps notes and reservations."""

    def __init__(self, settings: StoreSettings, client: StoreClient, keyspace: Keyspace) -> None:
        super().__init__(settings)
        self.client = client
        self.keyspace = keyspace
        self.records = RecordReader(self.client, self.keyspace)

    def get_note(self, key: str) -> str | None:
        text = self.client.ask("GET", [self.keyspace.note_key(key)])
        return None if text is None else str(text, "utf-8", "backslashreplace")

    def set_note(self, note: Note) -> None:
        key = self.keyspace.note_key(note.key)
        if note.text:
            self.client.ask("SET", [key], note.text, "PX", milliseconds(note.ttl))
        else:
            self.client.ask("DEL", [key])

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
    ) -> str | LockInfo | None:
        keys = [*self.keyspace.note_keys(key)]
        if unless_held is not None:
            keys.append(self.keyspace.key(unless_held).encode())
        reply = self.client.run(RESERVE, keys, (text, milliseconds(ttl), over, *self._member(key)))
        if reply is None:
            return None
        kind, value = reply
        if kind == 1:
            return str(value, "utf-8", "backslashreplace")
        return self.records.info(unless_held or "", value, None)

    def unreserve(self, key: str, text: str) -> bool:
        keys = self.keyspace.note_keys(key)
        args = (text.encode("utf-8", "surrogateescape"), *self._member(key))
        # Not sent again after a lost reply: the next reservation may have the same text.
        return bool(self.client.run(UNRESERVE, keys, args, again=False))

    def reservations(self, prefix: str = "", limit: int | None = None) -> list[Reserved]:
        found: list[Reserved] = []
        offset = 0
        while limit is None or len(found) < limit:
            read, members = self.client.run(
                RESERVATION_KEYS,
                (self.keyspace.reserved,),
                (offset, RESERVATIONS_PER_SCRIPT, LISTED_KEY_PREFIX + prefix),
            )
            keys = decoded_keys(self.keyspace, members)
            live = live_of(keys, self.client.run(*texts_call(self.keyspace, keys))) if keys else []
            found += live
            # The script has removed those from the index that are over.
            offset += read - (len(keys) - len(live))
            if read < RESERVATIONS_PER_SCRIPT:
                break
        return found[:limit]

    def _member(self, key: str) -> tuple[str, ...]:
        """The reservation's member of the index, as arguments; none if it is not listed."""
        return (self.keyspace.note_member(key),) if key.startswith(LISTED_KEY_PREFIX) else ()


def decoded_keys(keyspace: Keyspace, members: Sequence[bytes]) -> list[str]:
    """The keys of reservations, as the index has them. What is not UTF-8 was not written by us."""
    return [key for key in map(keyspace.note_of, members) if key is not None]


def texts_call(keyspace: Keyspace, keys: Sequence[str]) -> Call:
    """The script that reads reservations; `live_of` reads its reply."""
    notes = [keyspace.note_key(key) for key in keys]
    args = (MAX_RESERVED_TEXT_BYTES, *map(keyspace.note_member, keys))
    return Call(RESERVATION_TEXTS, (keyspace.reserved, *notes), args)


def live_of(keys: Sequence[str], flat: Sequence[Any]) -> list[Reserved]:
    """The live ones of the reservations with these keys."""
    return [
        # `unreserve` encodes it to the same bytes, whatever they are.
        Reserved(key, text.decode("utf-8", "surrogateescape"), seconds(left))
        for key, text, left in zip(keys, flat[::2], flat[1::2], strict=True)
        if text is not None
    ]


def seconds(left_ms: int) -> float | None:
    """What PTTL returned, in seconds; None: the key never expires."""
    return None if left_ms < 0 else left_ms / 1000
