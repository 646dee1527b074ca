"""What a long search has found, kept for some seconds for all pages that ask the same.

To find few among 100,000 locks, or to sort them, the store must look at each. Pages follow one
another, and each open browser asks again every few seconds. So the names that a search has found
are kept in the store, as a note, and the next who ask read those locks alone, as they are then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from typing import Any, NamedTuple

from .._values.arguments import is_name
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, Note
from ..stores.criteria import Criteria
from ..stores.search import Found

__all__ = ["FoundAt", "kept_search", "question"]

KEPT_AFTER_SECONDS = 0.1
"""a search that took less is not kept: to search again costs little, and is up to date"""
KEPT_TIMES = 20
"""how many times as long as it took a search is kept: so that searches take no more than a
twentieth of the time, whoever asks how often"""
SHORTEST_KEPT_SECONDS = 5.0
LONGEST_KEPT_SECONDS = 60.0
KEPT_AHEAD = 1000
"""locks beyond those of the page whose names are kept, for the pages after it"""
MAX_NAMES = 10_000
"""names that are kept; a search that found more is not"""
CLOCK_SECONDS = 5.0
"""how far the clocks of two hosts may differ"""


class FoundAt(NamedTuple):
    """What a search has found: the locks as they are now, and when it looked which match."""

    infos: list[LockInfo]
    more: bool
    """whether there are others, which were not counted"""
    at: float | None = None
    """seconds since the epoch; None: now"""


class _Kept(NamedTuple):
    at: float
    more: bool
    names: list[str]


def question(criteria: Criteria, order: str, endless: bool) -> str:
    """A text that is the same for searches that find the same locks in the same order."""
    asked: list[Any] = [asdict(criteria), order, endless]
    if criteria.gone:
        # Of other machines, nobody here knows whether a process has ended.
        here = Owner.current()
        asked += here.boot, here.pidns
    return f"search {sha256(json.dumps(asked).encode()).hexdigest()}"


def kept_search(
    store: BaseStore,
    asked: str,
    look: Callable[[int], Found],
    matches: Callable[[LockInfo], bool],
    reach: int,
    ahead: int,
) -> FoundAt:
    """Search a store of many locks, or read again what the same search has found just now.

    Args:
        store: one with ``keeps_searches``.
        asked: what `question` returned.
        look: searches: for so many locks at most.
        matches: whether a lock, as it is now, is still to be shown.
        reach: how many locks the page needs.
        ahead: how many beyond those are to be counted.

    Returns:
        Up to ``reach + ahead`` locks. From a kept search it may be up to half of ``ahead`` fewer
        though there are ``more``, and those that match only since then are missing.

    Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    again = _again(store, _read(store.get_note(asked)), matches, reach, ahead)
    if again is not None:
        return again
    at, start = time.time(), time.monotonic()
    found = look(reach + max(ahead, KEPT_AHEAD))
    took = time.monotonic() - start
    if took >= KEPT_AFTER_SECONDS and len(found.infos) <= MAX_NAMES:
        ttl = min(max(KEPT_TIMES * took, SHORTEST_KEPT_SECONDS), LONGEST_KEPT_SECONDS)
        # Who may read but not write sees what was found all the same.
        with suppress(StoreUnavailable):
            store.set_note(Note(asked, _text_of(at, found), ttl))
    infos = found.infos[: reach + ahead]
    return FoundAt(infos, found.more or len(infos) < len(found.infos))


def _again(
    store: BaseStore,
    kept: _Kept | None,
    matches: Callable[[LockInfo], bool],
    reach: int,
    ahead: int,
) -> FoundAt | None:
    """The locks of a kept search, as they are now; None if they are too few."""
    if kept is None or (kept.more and len(kept.names) < reach + ahead // 2):
        return None
    live: list[LockInfo] = []
    read = 0
    while (missing := reach + ahead - len(live)) and read < len(kept.names):
        some = kept.names[read : read + missing]
        read += len(some)
        live += [info for info in store.get_many(some) if info is not None and matches(info)]
    if kept.more and len(live) < reach:
        return None  # Most of them are gone.
    return FoundAt(live, kept.more or read < len(kept.names), kept.at)


def _text_of(at: float, found: Found) -> str:
    # Names have no spaces in them.
    return json.dumps([at, found.more, " ".join(info.name for info in found.infos)])


def _read(text: str | None) -> _Kept | None:
    """What was kept; None for what was not written here, as anybody may write to a store."""
    if text is None:
        return None
    try:
        at, more, joined = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    if type(at) is not float or type(more) is not bool or type(joined) is not str:
        return None
    age = time.time() - at
    if not -CLOCK_SECONDS <= age <= LONGEST_KEPT_SECONDS + CLOCK_SECONDS:
        return None
    names = joined.split(" ") if joined else []
    return _Kept(at, more, names) if _are_names(names) else None


def _are_names(names: Sequence[str]) -> bool:
    return len(names) <= MAX_NAMES and len({*names}) == len(names) and all(map(is_name, names))
