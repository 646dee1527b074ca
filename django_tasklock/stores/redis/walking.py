"""Reading the whole index in pieces, while locks come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..._values.lock_info import LockInfo
from .keyspace import Keyspace
from .listing import decoded, infos, records_call
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
    """in milliseconds, as the index has them"""
    fences: Sequence[bytes | None]
    """empty if they were not asked for"""


class IndexWalk:
    """All names of the index, window by window, each of them once.

    Each window begins after the name that was read last, wherever that is then: those that are
    released meanwhile do not hide others. A lease that is extended comes again, and is left out.
    """

    def __init__(
        self, client: StoreClient, keyspace: Keyspace, prefix: str, *, fences: bool = False
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._prefix = prefix
        self._fences = fences

    def windows(self) -> Iterator[Window]:
        """Read the index. Raises `StoreUnavailable`."""
        keyspace = self._keyspace
        last: bytes | str = ""
        end: bytes | str = ""
        size = FIRST_NAMES
        seen: set[str] = set()
        while True:
            args = (size, self._prefix, last, end, int(self._fences))
            now, read, last, end, names, ends, fences = self._client.run(
                WALK_INDEX, (keyspace.index, keyspace.fences), args
            )
            fence_of = dict(zip(names, fences, strict=False))
            texts, its_ends, strange = decoded(names, ends)
            if strange:
                self._client.ask("ZREM", [keyspace.index], *strange)
            if seen.isdisjoint(texts):
                seen.update(texts)
            else:
                new = [at for at, text in enumerate(texts) if text not in seen]
                texts, its_ends = [texts[at] for at in new], [its_ends[at] for at in new]
                seen.update(texts)
            its_fences = [fence_of.get(text.encode()) for text in texts] if fences else ()
            yield Window(now, texts, its_ends, its_fences)
            if read < size:
                return
            size = NAMES_PER_WINDOW

    def infos(self, records: RecordReader) -> Iterator[LockInfo]:
        """The locks themselves. Raises `StoreUnavailable`."""
        for now, names, ends, _ in self.windows():
            for at in range(0, len(names), RECORDS_PER_PIECE):
                part = slice(at, at + RECORDS_PER_PIECE)
                reply = self._client.run(*records_call(self._keyspace, names[part]))
                yield from infos(records, now, names[part], ends[part], *reply)
