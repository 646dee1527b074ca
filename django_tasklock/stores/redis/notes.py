"""What a store keeps beside the locks: notes of ended runs, counts, reservations."""

from __future__ import annotations

from ...conf import StoreSettings
from ...lease import LockInfo
from ..base import BaseStore, Note
from .client import Client, Script, milliseconds

__all__ = ["Notes"]

TALLY = Script("tally")
RESERVE = Script("reserve", "holding")
UNRESERVE = Script("unreserve")


class Notes(BaseStore):
    """The part of `RedisStore` that is not about locks. Each note is a key that ends by itself."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.client = Client(settings)

    def note_key(self, key: str) -> bytes:
        """The physical name of a note: it holds a space, which a lock's name never does."""
        return self.client.make_key(f"{self.settings.key_prefix} note {key}").encode()

    def recall(self, key: str) -> str | None:
        text = self.client.ask("GET", [self.note_key(key)])
        return None if text is None else text.decode("utf-8", "replace")

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
        keys = [self.note_key(key)]
        if unless_held is not None:
            keys.append(self.key(unless_held).encode())
        reply = self.client.run(RESERVE, keys, (text, milliseconds(ttl), over))
        if reply is None:
            return None
        kind, value = reply
        return (
            value.decode("utf-8", "replace")
            if kind == 1
            else self.info(unless_held or "", value, None)
        )

    def unreserve(self, key: str, text: str) -> bool:
        # Not again after a lost reply: the next reservation may have the same text.
        return bool(self.client.run(UNRESERVE, (self.note_key(key),), (text,), again=False))

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
