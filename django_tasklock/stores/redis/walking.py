"""Reading the whole index in pieces, while locks come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

from ..._values.arguments import are_names
from ..._values.lock_info import LockInfo
from .keyspace import Keyspace
from .listing import infos, records_call
from .record_reader import RecordReader
from .script import Script
from .store_client import StoreClient

__all__ = ["IndexWalk", "Window"]

WALK_INDEX = Script("walk_index")

FIRST_NAMES = 200
"""names of the first window: whoever prints a list sees its beginning soon"""
NAMES_PER_WINDOW = 2000
"""names of each other window: other clients wait while the server reads them"""
RECORDS_PER_PIECE = 500


class Window(NamedTuple):
    """Some names of the index, in the order in which they expire."""

    now: int
    """the server's time, in milliseconds"""
    names: Sequence[str]
    ends: Sequence[bytes]
    """in milliseconds, as the index has them; empty if they were not asked for"""
    fences: Sequence[bytes | None]
    """empty if they were not asked for"""


class IndexWalk:
    """All names of the index, window by window, each of them once.

    Each window begins after the name that was read last, wherever that is then: those that are
    released meanwhile do not hide others. A lease that is extended comes again, and is left out.
    """

    def __init__(
        self,
        client: StoreClient,
        keyspace: Keyspace,
        prefix: str,
        *,
        ends: bool = False,
        fences: bool = False,
    ) -> None:
        """``ends`` and ``fences``: whether to read those too."""
        self._client = client
        self._keyspace = keyspace
        self._prefix = prefix
        self._wanted = int(ends), int(fences)

    def windows(self) -> Iterator[Window]:
        """Read the index. Raises `StoreUnavailable`."""
        keyspace, (last, end, size) = self._keyspace, (b"", b"", FIRST_NAMES)
        seen: set[str] = set()
        while True:
            names = None
            if keyspace.prepends:
                now, read, *after, ends, fences, count, text = self._read(size, last, end)
                names = _names(count, text)
            if names is None:
                # There are spaces in them: they have keys, or one of them cannot be a lock's name.
                now, read, *after, ends, fences, _, found = self._read(size, last, end, 1)
                names, ends, fences = self._locks(found, ends, fences)
            last, end = after
            members = names if keyspace.prepends else [*map(keyspace.member, names)]
            if not seen.isdisjoint(members):
                new = [member not in seen for member in members]
                names, ends, fences = (list(compress(a, new)) for a in (names, ends, fences))
            seen.update(members)
            yield Window(now, names, ends, fences)
            if read < size:
                return
            size = NAMES_PER_WINDOW

    def infos(self, records: RecordReader) -> Iterator[LockInfo]:
        """The locks themselves, of a walk with ``ends``. Raises `StoreUnavailable`."""
        for now, names, ends, _ in self.windows():
            for at in range(0, len(names), RECORDS_PER_PIECE):
                part = slice(at, at + RECORDS_PER_PIECE)
                reply = self._client.run(*records_call(self._keyspace, names[part]))
                yield from infos(records, now, names[part], ends[part], *reply)

    def _read(self, size: int, last: bytes, end: bytes, as_list: int = 0) -> Any:
        args = (size, self._prefix, last, end, *self._wanted, as_list)
        return self._client.run(WALK_INDEX, (self._keyspace.index, self._keyspace.fences), args)

    def _locks(self, found: Sequence[bytes], *others: Sequence[Any]) -> list[list[Any]]:
        """Those that can be locks, with what goes with them; removes the others from the index."""
        names = [self._keyspace.name_of(name) for name in found]
        strange = [name for name, text in zip(found, names, strict=True) if text is None]
        if strange:
            self._client.ask("ZREM", [self._keyspace.index], *strange)
        good = [name is not None for name in names]
        return [list(compress(each, good)) for each in (names, *others)]


def _names(count: int, text: bytes) -> list[str] | None:
    """The names in a text that has ``count`` of them, if all can be a lock's name."""
    if not count:
        return []
    try:
        joined = text.decode()
    except UnicodeDecodeError:
        return None
    names = joined.split(" ")
    return names if len(names) == count and are_names(names, joined) else None
