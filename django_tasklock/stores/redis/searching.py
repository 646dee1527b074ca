"""Searching all locks of a store on the server: what is sent are names, and records that match."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, TypeAlias

from ..._values.liveness import Liveness
from ..._values.lock_info import LockInfo
from ..._values.ordering import first_by, in_order
from ..criteria import Criteria
from ..record import fence_of
from ..search import Found
from .keyspace import QUEUE, Keyspace
from .listing import infos
from .record_reader import RecordReader
from .record_test import RecordTest
from .script import Script
from .store_client import StoreClient
from .walking import IndexWalk, Window

__all__ = ["Searcher"]

FIND_RECORDS = Script("find_records")
NEXT_WAITERS = Script("next_waiters")
QUEUE_LENGTHS = Script("queue_lengths")
DESCRIBE_FOUND = Script("describe_found")

RECORDS_PER_TEST = 1000
"""records that one script reads: other clients wait meanwhile"""
DESCRIBED_PER_SCRIPT = 500


Match: TypeAlias = tuple[str, Any]
"""the name of a lock that matched when it was read, and by what it is sorted"""


class Searcher:
    """One search of a `RedisStore`.

    It walks the index once. Names are compared here. Records are tested by the server, some at a
    time, and only where the name does not decide. The locks to return are then read in full, and
    looked at once more: what is returned matches, and is no mixture of two leases.
    """

    def __init__(
        self,
        client: StoreClient,
        keyspace: Keyspace,
        records: RecordReader,
        criteria: Criteria,
        order: str = "ttl",
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._records = records
        self._criteria = criteria
        self._order = order
        self._liveness = Liveness()
        self._tested: dict[str, bytes] = {}
        """with ``gone``: the records of those that matched and are described next"""
        self._by = order.removeprefix("-")
        self._walk = IndexWalk(
            client, keyspace, criteria.prefix,
            ends=criteria.within is not None or order == "-ttl", fences=self._by == "age",
        )  # fmt: skip
        self._test = RecordTest(criteria, client.encode, _head_of(keyspace))

    def search(self, most: int | None) -> Found:
        """`Search.search`."""
        enough = None if most is None else most + 1
        if self._order == "ttl":
            found = [*islice(self.walk(enough), enough)]
            return Found(found[:most], most is not None and len(found) > most)
        first = self._first(enough)
        found = in_order(self._described([name for name, _ in first]), self._order)
        return Found(found[:most], most is not None and len(first) > most)

    def walk(self, enough: int | None = None) -> Iterator[LockInfo]:
        """`Search.walk_matching`, for a caller who will not need more than ``enough``."""
        matches = self._matches()
        read = 0
        # Some may go, or change, before they are described.
        while enough is None or read < enough:
            size = DESCRIBED_PER_SCRIPT
            if enough is not None:
                size = min(size, enough - read)
            part = [name for name, _ in islice(matches, size)]
            if not part:
                return
            found = self._described(part)
            read += len(found)
            yield from found

    def _first(self, enough: int | None) -> list[Match]:
        matches: Iterable[Match] = self._matches()
        if self._by == "waiters":
            matches = self._with_queues(matches, QUEUE_LENGTHS, int)
        elif self._by == "wait":
            matches = self._with_queues(matches, NEXT_WAITERS, self._wait_of)
        backwards = self._order.startswith("-")
        return first_by(itemgetter(1), matches, enough, backwards=backwards)

    def _matches(self) -> Iterator[Match]:
        """What matches, the soonest to expire first."""
        within = self._criteria.within
        for window in self._walk.windows():
            names = window.names
            count = len(names)
            if within is not None:
                last = window.now + within * 1000
                count = sum(float(end) <= last for end in window.ends)
            by = self._sort_keys(window)
            if not (self._criteria.of_owner or self._criteria.words):
                yield from islice(zip(names, by, strict=True), count)
            else:
                for start in range(0, count, RECORDS_PER_TEST):
                    some = range(start, min(count, start + RECORDS_PER_TEST))
                    for at in self._matching(window, some):
                        yield names[at], by[at]
            if count < len(names):
                return

    def _sort_keys(self, window: Window) -> Sequence[Any]:
        if self._by == "age":
            return _ages_of(window.fences)
        return [float(end) for end in window.ends] if self._order == "-ttl" else window.names

    def _matching(self, window: Window, some: range) -> list[int]:
        """Which of some names of a window match."""
        criteria, names = self._criteria, window.names
        by_name: set[int] = set()
        if not criteria.of_owner:
            # One comparison for all: mostly, a word occurs in none of the names.
            together = "\n".join(names[some.start : some.stop]).casefold()
            if all(word in together for word in criteria.words):
                by_name = {at for at in some if not criteria.not_in_name(names[at])}
        asked = [at for at in some if at not in by_name]
        if asked:
            keys = [self._keyspace.key(names[at]).encode() for at in asked]
            flat = self._client.run(FIND_RECORDS, keys, self._test.arguments())
            for number, value in zip(flat[::2], flat[1::2], strict=True):
                at = asked[number - 1]
                # Without the ends, nothing asks for what is left.
                left = max(0.0, float(window.ends[at]) - window.now) / 1000 if window.ends else 0.0
                info = self._records.info(names[at], value, left, b"")
                if criteria.matches(info, self._liveness):
                    by_name.add(at)
                    if criteria.gone and self._order == "ttl":
                        self._tested[names[at]] = value
                elif criteria.gone:
                    self._test.learn(value, self._liveness.of(info.owner))
        return sorted(by_name)

    def _with_queues(
        self, matches: Iterable[Match], script: Script, sort_key: Callable[[Any], Any]
    ) -> Iterator[Match]:
        """The matches, to be sorted by what the script says of their wait queues."""
        names = (name for name, _ in matches)
        nobody = sort_key(0)
        while part := list(islice(names, RECORDS_PER_TEST)):
            queues = [self._keyspace.key(name).encode() + QUEUE for name in part]
            answers = self._client.run(script, queues)
            if answers:
                for name, found in zip(part, answers, strict=True):
                    yield name, sort_key(found) if found else nobody
            else:
                yield from zip(part, repeat(nobody), strict=False)

    def _wait_of(self, head: bytes | int) -> float:
        since = self._records.waiter(head).waiting_since if isinstance(head, bytes) else None
        return -math.inf if since is None else -since.timestamp()

    def _described(self, matching: Sequence[str]) -> list[LockInfo]:
        """The locks themselves, without those that have gone or do not match any more."""
        found: list[LockInfo] = []
        keyspace = self._keyspace
        for start in range(0, len(matching), DESCRIBED_PER_SCRIPT):
            names = matching[start : start + DESCRIBED_PER_SCRIPT]
            keys = [keyspace.key(name).encode() for name in names]
            queues = [key + QUEUE for key in keys]
            now, ends, *rest = self._client.run(
                DESCRIBE_FOUND,
                (keyspace.index, keyspace.fences, *keys, *queues),
                [*map(keyspace.member, names)],
            )
            # A name without an end is not in the index any more, and its key is gone.
            ends = [b"0" if end is None else end for end in ends]
            found += infos(self._records, now, names, ends, *rest)
        if not (self._criteria.of_owner or self._criteria.words):
            return found
        return [info for info in found if self._still_matches(info)]

    def _still_matches(self, info: LockInfo) -> bool:
        if not self._criteria.matches(info, self._liveness):
            return False
        tested, value = self._tested.pop(info.name, None), self._records.value_of(info)
        if tested is None or tested == value:
            return True
        # It was read before it was looked whether its process lives: so once more.
        self._tested[info.name] = value or b""
        return bool(self._described([info.name]))


def _ages_of(fences: Sequence[bytes | None]) -> Sequence[float]:
    """The later a lease was granted, the smaller; what has no fence is the oldest."""
    known = [None if fence is None else fence_of(fence) for fence in fences]
    return [math.inf if fence is None else -fence for fence in known]


def _head_of(keyspace: Keyspace) -> bytes:
    """What comes before the name in each key; nothing where that may differ."""
    return keyspace.key("").encode() if keyspace.prepends else b""
