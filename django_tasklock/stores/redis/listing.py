"""Listing by the index: its cost depends on the locks to list, not on the size of the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ..._values.arguments import LONGEST_TTL_SECONDS, is_name
from ..._values.lock_info import LockInfo
from ...exceptions import ListingNotSupported
from ..values import SCAN
from .keyspace import QUEUE, Keyspace
from .record_reader import RecordReader
from .script import Script
from .server_client import Call
from .store_client import StoreClient

__all__ = [
    "COUNT_LOCKS",
    "NAMES_PER_SCRIPT",
    "RECORDS_PER_SCRIPT",
    "VALUES_OF_KEYS",
    "Listing",
    "LockInfos",
    "decoded",
    "escaped",
    "infos",
    "lock_name",
    "page_call",
    "records_call",
]

LIST_PAGE = Script("list_page")
LIST_RECORDS = Script("list_records")
COUNT_LOCKS = Script("count_locks")
VALUES_OF_KEYS = Script("values_of_keys")
ENDLESS_VALUES = Script("endless_values")

LockInfos: TypeAlias = list[LockInfo]
"""a list, in a class whose method `list` hides the type"""

NAMES_PER_SCRIPT = 5000
"""how many names one script reads: other clients wait meanwhile"""
RECORDS_PER_SCRIPT = 1000
MAX_LEFT_MS = 2000 * LONGEST_TTL_SECONDS
"""no lease lasts longer"""


class Listing:
    """`list`, `count` and `scan` of a `RedisStore`."""

    def __init__(self, client: StoreClient, keyspace: Keyspace, records: RecordReader) -> None:
        self._client = client
        self._keyspace = keyspace
        self._records = records

    def list(self, prefix: str, limit: int | None, offset: int) -> LockInfos:
        found: LockInfos = []
        replies: deque[Sequence[Any]] = deque()

        def convert() -> None:
            while replies:
                found.extend(infos(self._records, *replies.popleft()))

        # The index's offset counts all names, the caller's only those with the prefix.
        skip, at = (0, offset) if not prefix else (offset, 0)
        size = 0
        while limit is None or size < limit:
            missing = NAMES_PER_SCRIPT
            if limit is not None and not prefix:
                missing = min(missing, limit - size)
            page = page_call(self._keyspace, at, missing, prefix)
            now, read, flat = self._client.run(*page, meanwhile=convert)
            names, ends = flat[::2], flat[1::2]
            at += read
            if skip:
                skip, names, ends = max(0, skip - len(names)), names[skip:], ends[skip:]
            while names and (limit is None or size < limit):
                part = (
                    RECORDS_PER_SCRIPT if limit is None else min(RECORDS_PER_SCRIPT, limit - size)
                )
                texts, their_ends, strange = decoded(self._keyspace, names[:part], ends[:part])
                if strange:
                    self._client.ask("ZREM", [self._keyspace.index], *strange)
                # While the server reads a part, the one before is made into `LockInfo`.
                reply = self._client.run(*records_call(self._keyspace, texts), meanwhile=convert)
                replies.append((now, texts, their_ends, *reply))
                live = len(texts) - reply[0].count(None)
                # Those that are no locks or are gone are not in the index any more.
                at -= len(names[:part]) - live
                size += live
                names, ends = names[part:], ends[part:]
            if read < missing:
                break
        convert()
        return found

    def count(self, prefix: str) -> int:
        if not prefix:
            return int(self._client.run(COUNT_LOCKS, (self._keyspace.index,)))
        total = at = 0
        while True:
            page = page_call(self._keyspace, at, NAMES_PER_SCRIPT, prefix)
            _, read, flat = self._client.run(*page)
            total += len(flat) // 2
            at += read
            if read < NAMES_PER_SCRIPT:
                return total

    def scan(self, prefix: str) -> Iterator[LockInfo]:
        for found in self._keys(prefix):
            flat = self._client.run(VALUES_OF_KEYS, list(found))
            for name, value, left in zip(found.values(), flat[::2], flat[1::2], strict=True):
                if value is not None:
                    yield self._records.info(name, value, None if left < 0 else left / 1000)

    def endless(self, prefix: str) -> Iterator[LockInfo]:
        for found in self._keys(prefix):
            names = list(found.values())
            flat = self._client.run(ENDLESS_VALUES, list(found))
            for number, value in zip(flat[::2], flat[1::2], strict=True):
                if value is not None:
                    yield self._records.info(names[number - 1], value, None)

    def _keys(self, prefix: str) -> Iterator[dict[bytes, str]]:
        """The keys of all locks, some at a time, each with the lock's name."""
        client, key_prefix = self._client, self._keyspace.key("")
        if not self._keyspace.tells_locks_apart():
            raise ListingNotSupported(client.alias, SCAN)
        pattern = escaped(key_prefix) + escaped(prefix) + "*"
        start = len(key_prefix.encode())
        cursor: Any = 0
        seen: set[bytes] = set()
        while True:
            cursor, keys = client.ask(
                "SCAN", (), cursor, "MATCH", pattern, "COUNT", RECORDS_PER_SCRIPT
            )
            # Redis may return a key twice while its hash table grows or shrinks.
            found = {
                key: name for key in keys if key not in seen and (name := lock_name(key[start:]))
            }
            seen.update(found)
            if found:
                yield found
            if int(cursor) == 0:
                return


def page_call(keyspace: Keyspace, offset: int, size: int, prefix: str) -> Call:
    """The script that reads a page of the index.

    It returns the server's time in milliseconds, how many names it has read, and those with the
    prefix, each with its end.
    """
    return Call(LIST_PAGE, (keyspace.index, keyspace.fences), (offset, size, prefix))


def records_call(keyspace: Keyspace, names: Sequence[str]) -> Call:
    """The script that reads the records of a page.

    It returns the values, the fences, the lengths of the wait queues, none if all are empty, and
    the first members of those that are not, each after the number of its lock.
    """
    keys = [keyspace.key(name).encode() for name in names]
    queues = [key + QUEUE for key in keys]
    members = names if keyspace.prepends else [*map(keyspace.member, names)]
    return Call(LIST_RECORDS, (keyspace.index, keyspace.fences, *keys, *queues), members)


def decoded(
    keyspace: Keyspace, names: Sequence[bytes], ends: Sequence[bytes]
) -> tuple[Sequence[str], Sequence[bytes], Sequence[bytes]]:
    """The names as text, and their ends, both without what cannot be a lock's name; and what cannot
    be one, which the caller is to remove from the index."""
    try:
        together = b" ".join(names).decode()
    except UnicodeDecodeError:
        together = ""
    texts = together.split(" ")
    if len(texts) == len(names) and all(map(is_name, texts)):
        return texts, ends, ()
    found = [(keyspace.name_of(name), end) for name, end in zip(names, ends, strict=True)]
    strange = [name for name, (text, _) in zip(names, found, strict=True) if text is None]
    pairs = [(text, end) for text, end in found if text is not None]
    return [text for text, _ in pairs], [end for _, end in pairs], strange


def infos(
    records: RecordReader,
    now: int,
    names: Sequence[str],
    ends: Sequence[bytes],
    values: Sequence[bytes | None],
    fences: Sequence[bytes | None],
    lengths: Sequence[int],
    heads: Sequence[Any],
) -> LockInfos:
    """The `LockInfo` of all but those whose key is gone."""
    info, all_heads = records.info, [None] * len(names)
    lengths = lengths or [0] * len(names)
    for number, head in zip(heads[::2], heads[1::2], strict=True):
        all_heads[number - 1] = head
    return [
        info(name, value, left, fence, length, head)
        for name, left, value, fence, length, head in zip(
            names, _all_left(ends, now), values, fences, lengths, all_heads, strict=True
        )
        if value is not None
    ]


def escaped(text: str) -> str:
    """``text`` as a pattern of SCAN that matches it alone."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)


def lock_name(text: bytes) -> str | None:
    """The name of a lock; None for what cannot be a lock's name."""
    try:
        name = text.decode()
    except UnicodeDecodeError:
        return None
    return name if is_name(name) else None


def _all_left(ends_ms: Sequence[bytes], now_ms: int) -> Sequence[float | None]:
    """`_left` of each. Mostly none of them is special, and then no function is called for each."""
    try:
        left = [int(end) - now_ms for end in ends_ms]
        if left and min(left) >= 0 and max(left) <= MAX_LEFT_MS:
            return [each / 1000 for each in left]
    except ValueError:
        pass
    return [_left(end, now_ms) for end in ends_ms]


def _left(end_ms: bytes, now_ms: int) -> float | None:
    """Seconds from now to the end in the index; None if that cannot be the end of a lease."""
    try:
        left = int(end_ms) - now_ms
    except ValueError:
        return None  # Redis writes very large numbers with an exponent.
    return max(0, left) / 1000 if left <= MAX_LEFT_MS else None
