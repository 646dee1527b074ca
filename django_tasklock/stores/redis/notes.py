"""What a store keeps beside the locks: notes of ended runs, counts, reservations."""

from __future__ import annotations

from collections.abc import Sequence

from ...conf import StoreSettings
from ...lease import LockInfo
from ..base import LISTED, BaseStore, Note, Reserved
from .client import Client, Script, milliseconds

__all__ = ["Notes", "seconds"]

TALLY = Script("tally")
RESERVE = Script("reserve", "holding")
UNRESERVE = Script("unreserve")
RESERVED = Script("reserved")
TEXTS = Script("texts")

STRETCH = 1000
"""reservations looked at by one script"""
LONGEST_TEXT = 1024
"""bytes; Celery's ids are shorter, and what is longer was written by somebody else"""


class Notes(BaseStore):
    """The part of `RedisStore` that is not about locks. Each note is a key that ends by itself."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.client = Client(settings)
        self.reserved = self.client.make_key(f"{settings.key_prefix} reserved").encode()

    def note_key(self, key: str) -> bytes:
        """The physical name of a note: it holds a space, which a lock's name never does."""
        return self.client.make_key(f"{self.settings.key_prefix} note {key}").encode()

    def recall(self, key: str) -> str | None:
        text = self.client.ask("GET", [self.note_key(key)])
        return None if text is None else str(text, "utf-8", "backslashreplace")

    def remember(self, note: Note) -> None:
        key = self.note_key(note.key)
        if note.text:
            self.client.ask("SET", [key], note.text, "PX", milliseconds(note.ttl))
        else:
            self.client.ask("DEL", [key])

    def tally(self, key: str, ttl: float, by: int = 1) -> int:
        return int(self.client.run(TALLY, (self.note_key(key),), (milliseconds(ttl), by)))

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
    ) -> str | LockInfo | None:
        keys = [self.note_key(key), self.reserved]
        if unless_held is not None:
            keys.append(self.key(unless_held).encode())
        reply = self.client.run(RESERVE, keys, (text, milliseconds(ttl), over, *_member(key)))
        if reply is None:
            return None
        kind, value = reply
        if kind == 1:
            return str(value, "utf-8", "backslashreplace")
        return self.info(unless_held or "", value, None)

    def unreserve(self, key: str, text: str) -> bool:
        # Not again after a lost reply: the next reservation may have the same text.
        keys = (self.note_key(key), self.reserved)
        args = (text.encode("utf-8", "surrogateescape"), *_member(key))
        return bool(self.client.run(UNRESERVE, keys, args, again=False))

    def reservations(self, prefix: str = "", limit: int | None = None) -> list[Reserved]:
        found: list[Reserved] = []
        at = 0
        while limit is None or len(found) < limit:
            looked_at, members = self.client.run(
                RESERVED, (self.reserved,), (at, STRETCH, LISTED + prefix)
            )
            # What is not UTF-8 was not written by us.
            keys = [key for key in map(_decoded, members) if key is not None]
            there = self._reserved(keys) if keys else []
            found += there
            # What has ended left the index with that look at it.
            at += looked_at - (len(keys) - len(there))
            if looked_at < STRETCH:
                break
        return found[:limit]

    def _reserved(self, keys: Sequence[str]) -> list[Reserved]:
        """The reservations of these keys that are there."""
        notes = [self.note_key(key) for key in keys]
        flat = self.client.run(TEXTS, (self.reserved, *notes), (LONGEST_TEXT, *keys))
        return [
            # Whatever bytes they are, `unreserve` compares the same.
            Reserved(key, text.decode("utf-8", "surrogateescape"), seconds(left))
            for key, text, left in zip(keys, flat[::2], flat[1::2], strict=True)
            if text is not None
        ]

    def key(self, name: str) -> str:
        """The physical name of a lock."""
        raise NotImplementedError

    def info(
        self,
        name: str,
        value: bytes,
        ttl: float | None,
        fence: bytes | None = None,
        waiters: int | None = None,
    ) -> LockInfo:
        """The `LockInfo` of a raw value, ours or anybody's."""
        raise NotImplementedError


def _member(key: str) -> tuple[str, ...]:
    """A reservation's member of the index; none for what is not listed."""
    return (key,) if key.startswith(LISTED) else ()


def _decoded(member: bytes) -> str | None:
    try:
        return member.decode()
    except UnicodeDecodeError:
        return None


def seconds(left: int) -> float | None:
    """A ttl that Redis has counted; None: it never ends."""
    return None if left < 0 else left / 1000
