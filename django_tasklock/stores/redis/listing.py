"""Listing by the index: what it costs is what there is to show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ...exceptions import ListingNotSupported
from ...lease import LockInfo
from .client import Script

if TYPE_CHECKING:
    from .store import RedisStore

__all__ = ["Listing"]

PAGE = Script("page")
RECORDS = Script("records")
COUNT = Script("count")
PEEK = Script("peek")

Found: TypeAlias = list[LockInfo]
Records: TypeAlias = list[LockInfo | None]
Names: TypeAlias = list[tuple[str, int]]

STRETCH = 5000
"""names looked at by one script while a prefix is searched for"""
CHUNK = 1000
"""records fetched by one script"""


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)


class Listing:
    """`list` and `count` of a `RedisStore`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def list(self, prefix: str, limit: int | None, offset: int) -> Found:
        found: Found = []
        skip, at = (0, offset) if not prefix else (offset, 0)
        while limit is None or len(found) < limit:
            missing = STRETCH if limit is None or prefix else limit - len(found)
            now, looked_at, names = self._page(prefix, at, missing)
            at += looked_at
            if skip:
                skip, names = max(0, skip - len(names)), names[skip:]
            while names and (limit is None or len(found) < limit):
                size = CHUNK if limit is None else min(CHUNK, limit - len(found))
                part, names = names[:size], names[size:]
                infos = self._records(now, part)
                # What was deleted by hand left the index with that look at it.
                at -= sum(info is None for info in infos)
                found += [info for info in infos if info is not None]
            if looked_at < missing:
                break
        return found

    def count(self, prefix: str) -> int:
        if not prefix:
            return int(self._store.client.run(COUNT, (self._store.index,)))
        total = at = 0
        while True:
            _, looked_at, names = self._page(prefix, at, STRETCH)
            total += len(names)
            at += looked_at
            if looked_at < STRETCH:
                return total

    def scan(self, prefix: str) -> Iterator[LockInfo]:
        store, names = self._store, self._names_by_key
        if not store.settings.key_prefix or not store.key("x").startswith(store.key("")):
            # Nothing tells a lock's key from the cache's other ones.
            raise ListingNotSupported(store.alias)
        pattern = _escaped(store.key("")) + _escaped(prefix) + "*"
        cursor: Any = 0
        seen: set[bytes] = set()
        while True:
            cursor, keys = store.client.ask("SCAN", cursor, "MATCH", pattern, "COUNT", CHUNK)
            # While its table grows or shrinks, Redis may return a key twice.
            found = {key: name for key in keys if key not in seen and (name := names(key))}
            seen.update(found)
            flat = store.client.run(PEEK, list(found)) if found else []
            for name, value, left in zip(found.values(), flat[::2], flat[1::2], strict=True):
                if value is not None:
                    yield store.info(name, value, None if left < 0 else left / 1000)
            if int(cursor) == 0:
                return

    def _names_by_key(self, key: bytes) -> str | None:
        """The name of the lock that a key is; None for the keys beside the locks."""
        start = self._store.key("").encode()
        name = key[len(start) :].decode("utf-8", "replace")
        return name if name and name.isprintable() and " " not in name else None

    def _page(self, prefix: str, offset: int, size: int) -> tuple[int, int, Names]:
        store = self._store
        now, looked_at, *flat = store.client.run(
            PAGE, (store.index, store.fences), (offset, size, prefix)
        )
        names = [(name.decode(), int(end)) for name, end in zip(flat[::2], flat[1::2], strict=True)]
        return now, looked_at, names

    def _records(self, now: int, names: Names) -> Records:
        if not names:
            return []
        store = self._store
        keys = [store.key(name).encode() for name, _ in names]
        lines = [key + b" line" for key in keys]
        values, fences, waiters = store.client.run(
            RECORDS, (store.index, store.fences, *keys, *lines), [name for name, _ in names]
        )
        return [
            None
            if value is None
            else store.info(name, value, max(0, end - now) / 1000, fence, waiting)
            for (name, end), value, fence, waiting in zip(
                names, values, fences, waiters, strict=True
            )
        ]
