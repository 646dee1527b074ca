"""Listing by the index: what it costs is what there is to show."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...arguments import LONGEST_TTL, is_name
from ...exceptions import ListingNotSupported
from ...lease import LockInfo
from .client import Script

if TYPE_CHECKING:
    from .store import RedisStore

__all__ = ["Listing"]

PAGE = Script("page", "holding", "described")
RECORDS = Script("records", "holding", "described")
COUNT = Script("count")
PEEK = Script("peek", "holding")

Found: TypeAlias = list[LockInfo]
Names: TypeAlias = Sequence["str | None"]

STRETCH = 5000
"""names looked at by one script while a prefix is searched for"""
CHUNK = 1000
"""records fetched by one script"""
MOST = 2000 * LONGEST_TTL
"""milliseconds that no lease lasts"""
PROBES = ("a", "b:c%2")
"""names from which is seen how a key is made of one"""


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)


class Listing:
    """`list` and `count` of a `RedisStore`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def list(self, prefix: str, limit: int | None, offset: int) -> Found:
        before = None if prefix else self._before_names()
        if before is not None:
            return self._whole(before, limit, offset)
        found: Found = []
        skip, at = (0, offset) if not prefix else (offset, 0)
        while limit is None or len(found) < limit:
            missing = STRETCH if limit is None or prefix else limit - len(found)
            now, looked_at, names, ends = self._page(at, missing, prefix)
            at += looked_at
            if skip:
                skip, names, ends = max(0, skip - len(names)), names[skip:], ends[skip:]
            while names and (limit is None or len(found) < limit):
                size = CHUNK if limit is None else min(CHUNK, limit - len(found))
                infos = self._records(now, names[:size], ends[:size])
                # What is no lock, or was deleted by hand, left the index with that look at it.
                at -= len(names[:size]) - len(infos)
                found += infos
                names, ends = names[size:], ends[size:]
            if looked_at < missing:
                break
        return found

    def _before_names(self) -> str | None:
        """What stands before a name in its lock's key, where that is all that `make_key` does; a
        KEY_FUNCTION may do more. Asked each time, for it may do another thing by then."""
        key = self._store.key
        before = key(PROBES[0]).removesuffix(PROBES[0])
        return before if all(key(name) == before + name for name in PROBES) else None

    def _whole(self, before: str, limit: int | None, offset: int) -> Found:
        """`list` without a prefix: names and records by one script, and what one page says is
        made into locks while the server is at the next."""
        found: Found = []
        pages: deque[Sequence[Any]] = deque()

        def work_off() -> None:
            while pages:
                found.extend(self._infos(*pages.popleft()))

        size = 0
        while limit is None or size < limit:
            missing = CHUNK if limit is None else min(CHUNK, limit - size)
            now, looked_at, *page = self._page(offset, missing, "", before, meanwhile=work_off)
            names, values = self._named(page[0]), page[2]
            pages.append((now, names, *page[1:]))
            gone = sum(None in pair for pair in zip(names, values, strict=True))
            size += len(names) - gone
            # What is no lock, or was deleted by hand, left the index with that look at it.
            offset += looked_at - gone
            if looked_at < missing:
                break
        work_off()
        return found

    def count(self, prefix: str) -> int:
        if not prefix:
            return int(self._store.client.run(COUNT, (self._store.index,)))
        total = at = 0
        while True:
            _, looked_at, names, _ = self._page(at, STRETCH, prefix)
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
            cursor, keys = store.client.ask("SCAN", (), cursor, "MATCH", pattern, "COUNT", CHUNK)
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
        return _name(key[len(start) :])

    def _page(
        self, offset: int, size: int, *prefixes: str, meanwhile: Callable[[], object] = tuple
    ) -> Sequence[Any]:
        store = self._store
        reply: Sequence[Any] = store.client.run(
            PAGE, (store.index, store.fences), (offset, size, *prefixes), meanwhile=meanwhile
        )
        return reply

    def _records(self, now: int, names: Sequence[bytes], ends: Sequence[bytes]) -> Found:
        store = self._store
        named = [pair for pair in zip(self._named(names), ends, strict=True) if pair[0]]
        found, ends = [name for name, _ in named if name], [end for _, end in named]
        keys = [store.key(name).encode() for name in found]
        lines = [key + b" queue" for key in keys]
        reply = store.client.run(RECORDS, (store.index, store.fences, *keys, *lines), found)
        return self._infos(now, found, ends, *reply)

    def _named(self, names: Sequence[bytes]) -> Names:
        """The names as text. What can be no lock's name leaves the index: nobody could take it."""
        try:
            together = b" ".join(names).decode()
        except UnicodeDecodeError:
            together = ""
        texts = together.split(" ")
        if len(texts) == len(names) and all(map(is_name, texts)):
            return texts
        found = [_name(name) for name in names]
        strange = [name for name, text in zip(names, found, strict=True) if text is None]
        if strange:
            self._store.client.ask("ZREM", [self._store.index], *strange)
        return found

    def _infos(
        self,
        now: int,
        names: Names,
        ends: Sequence[bytes],
        values: Sequence[bytes | None],
        fences: Sequence[bytes | None],
        lengths: Sequence[int],
    ) -> Found:
        """All but what is no lock, and those whose key is gone."""
        info = self._store.info
        return [
            info(name, value, _left(end, now), fence, length)
            for name, end, value, fence, length in zip(
                names, ends, values, fences, lengths, strict=True
            )
            if value is not None and name is not None
        ]


def _name(text: bytes) -> str | None:
    """The name of a lock; None for what can be no lock's name."""
    try:
        name = text.decode()
    except UnicodeDecodeError:
        return None
    return name if is_name(name) else None


def _left(end: bytes, now: int) -> float | None:
    """Seconds from now to the end that the index has; None if that is no end of a lease."""
    try:
        left = int(end) - now
    except ValueError:
        return None  # So large that Redis writes it in another way.
    return max(0, left) / 1000 if left <= MOST else None
