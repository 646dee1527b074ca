"""Searching all locks of a store on the server: what is sent are names, and records that match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

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


class Match(NamedTuple):
    """A lock whose name, and record if need be, matched when it was read."""

    name: str
    end: float
    """in milliseconds, by the server's clock"""
    fence: bytes | None = None
    waiters: int = 0
    head: bytes | None = None
    """the first member of its wait queue"""


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
        order: str,
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._records = records
        self._criteria = criteria
        self._order = order
        self._liveness = Liveness()
        by_age = order.removeprefix("-") == "age"
        self._walk = IndexWalk(client, keyspace, criteria.prefix, fences=by_age)
        self._test = RecordTest(criteria, client.encode, _head_of(keyspace))

    def search(self, most: int | None) -> Found:
        """`Search.search`."""
        enough = None if most is None else most + 1
        found: list[LockInfo] = []
        if self._order == "ttl":
            matches = self._matches()
            # Some may go, or change, before they are described.
            while enough is None or len(found) < enough:
                missing = DESCRIBED_PER_SCRIPT if enough is None else enough - len(found)
                part = list(islice(matches, missing))
                if not part:
                    break
                found += self._described(part)
            return Found(found[:most], most is not None and len(found) > most)
        first = self._first(enough)
        found = in_order(self._described(first), self._order)
        return Found(found[:most], most is not None and len(first) > most)

    def _first(self, enough: int | None) -> list[Match]:
        by, backwards = self._order.removeprefix("-"), self._order.startswith("-")
        matches: Iterable[Match] = self._matches()
        if by == "waiters":
            matches = self._with_waiters(matches, QUEUE_LENGTHS, "waiters")
        elif by == "wait":
            matches = self._with_waiters(matches, NEXT_WAITERS, "head")
        key = _SORT_KEYS.get(by, self._wait_of)
        return first_by(key, matches, enough, backwards=backwards)

    def _matches(self) -> Iterator[Match]:
        """What matches, the soonest to expire first."""
        within = self._criteria.within
        for window in self._walk.windows():
            ends = [float(end) for end in window.ends]
            count = len(ends)
            if within is not None:
                count = sum(end <= window.now + within * 1000 for end in ends)
            if not (self._criteria.of_owner or self._criteria.words):
                yield from (self._match(window, ends, at) for at in range(count))
            else:
                for start in range(0, count, RECORDS_PER_TEST):
                    some = range(start, min(count, start + RECORDS_PER_TEST))
                    for at in self._matching(window, ends, some):
                        yield self._match(window, ends, at)
            if count < len(ends):
                return

    @staticmethod
    def _match(window: Window, ends: Sequence[float], at: int) -> Match:
        fence = window.fences[at] if window.fences else None
        return Match(window.names[at], ends[at], fence)

    def _matching(self, window: Window, ends: Sequence[float], some: range) -> list[int]:
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
                left = max(0.0, ends[at] - window.now) / 1000
                info = self._records.info(names[at], value, left, b"")
                if criteria.matches(info, self._liveness):
                    by_name.add(at)
                elif criteria.gone:
                    self._test.learn(value, self._liveness.of(info.owner))
        return sorted(by_name)

    def _with_waiters(
        self, matches: Iterable[Match], script: Script, field: str
    ) -> Iterator[Match]:
        """The matches, each with what the script says of its wait queue as this field."""
        matches = iter(matches)
        while part := list(islice(matches, RECORDS_PER_TEST)):
            queues = [self._keyspace.key(match.name).encode() + QUEUE for match in part]
            answers = self._client.run(script, queues)
            if not answers:
                yield from part
                continue
            for match, found in zip(part, answers, strict=True):
                yield match._replace(**{field: found}) if found else match

    def _wait_of(self, match: Match) -> tuple[bool, float]:
        since = None if match.head is None else self._records.waiter(match.head).waiting_since
        return since is not None, -since.timestamp() if since else 0.0

    def _described(self, matches: Sequence[Match]) -> list[LockInfo]:
        """The locks themselves, without those that have gone or do not match any more."""
        found: list[LockInfo] = []
        keyspace = self._keyspace
        for start in range(0, len(matches), DESCRIBED_PER_SCRIPT):
            names = [match.name for match in matches[start : start + DESCRIBED_PER_SCRIPT]]
            keys = [keyspace.key(name).encode() for name in names]
            queues = [key + QUEUE for key in keys]
            now, ends, *rest = self._client.run(
                DESCRIBE_FOUND, (keyspace.index, keyspace.fences, *keys, *queues), names
            )
            # A name without an end is not in the index any more, and its key is gone.
            ends = [b"0" if end is None else end for end in ends]
            found += infos(self._records, now, names, ends, *rest)
        if not (self._criteria.of_owner or self._criteria.words):
            return found
        return [info for info in found if self._criteria.matches(info, self._liveness)]


def _age_of(match: Match) -> tuple[bool, int]:
    fence = None if match.fence is None else fence_of(match.fence)
    return fence is None, -(fence or 0)


_SORT_KEYS: dict[str, Callable[[Match], Any]] = {
    "ttl": lambda match: match.end,
    "name": lambda match: match.name,
    "age": _age_of,
    "waiters": lambda match: match.waiters,
}


def _head_of(keyspace: Keyspace) -> bytes:
    """What comes before the name in a key; nothing where the name is not at the end."""
    probe = "x"
    key = keyspace.key(probe)
    return key[: -len(probe)].encode() if key.endswith(probe) else b""
