"""What the store is still to be told: leases that nobody wants any more, and notes."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, TypeAlias

from .._values import clock
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, Note
from . import cooling
from .lease import Lease

__all__ = ["Abandoned", "Again", "OwedNote", "Unsettled", "settle"]

FIRST_LOOK_SECONDS = 0.25
LAST_LOOK_SECONDS = 4.0
"""from the first delay to the longest, before the store is asked again for a lease that it did not
have: the command of an interrupted call may still be on its way, behind ours"""
FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 2.0
"""from the first delay to the longest, before a store that did not answer is asked again"""


class Abandoned(NamedTuple):
    """A lease that is to be released, or to cool.

    Its release was interrupted; or it may have been granted to a call that was interrupted before
    it could know (then ``lease`` is None). ``due`` and ``until`` are moments on `clock.now`;
    ``until`` is when the lease ends by itself. ``delay`` is in seconds: how long this entry was to
    wait.
    """

    due: float
    order: int
    delay: float
    name: str
    until: float
    token: str
    lease: Lease | None
    note: Note | None
    """what the interrupted release was to write; or, where ``lease`` is None, what the acquire may
    have written"""


class OwedNote(NamedTuple):
    """A note that could not be written, or, with ``undo``, one that may have been written though
    nobody knows, and is to be removed. ``name`` is the lock that it is about; the others are those
    of `Abandoned`."""

    due: float
    order: int
    delay: float
    name: str
    until: float
    note: Note
    undo: bool


Unsettled: TypeAlias = "Abandoned | OwedNote"


class Again(NamedTuple):
    """``delay``: the seconds until the next try. ``silent``: whether the store did not answer."""

    delay: float
    silent: bool


def settle(store: BaseStore, entry: Unsettled, *, answers: bool) -> Again | None:
    """Tell the store. Return when to try again; None: it is done.

    ``answers`` says whether the store has just answered: one that has not is not asked, because
    renewals are waiting. Raises nothing.
    """
    try:
        if not answers:
            raise StoreUnavailable(store.alias, "it was silent a moment ago")
        if isinstance(entry, OwedNote):
            found: bool | None = _write(store, entry)
        else:
            found = _abandon(store, entry)
    except StoreUnavailable:
        if clock.now() < entry.until:
            return Again(min(LONGEST_RETRY_SECONDS, entry.delay * 2 + FIRST_RETRY_SECONDS), True)
    except BaseException:
        pass  # A store's mistake: what is left ends by itself.
    else:
        if isinstance(entry, OwedNote) or entry.lease is None:
            # What was interrupted may still be on its way, behind this.
            delay = max(FIRST_LOOK_SECONDS, entry.delay * 4)
            if not found and delay <= LAST_LOOK_SECONDS and clock.now() + delay < entry.until:
                return Again(delay, False)
        elif found is not False:
            with suppress(BaseException):  # Of a receiver of the signal.
                entry.lease._keeper.released(entry.lease)
    return None


def _write(store: BaseStore, entry: OwedNote) -> bool:
    """Whether there is nothing left to do."""
    if entry.undo:
        return store.unreserve(entry.note.key, entry.note.text)
    store.set_note(entry.note)
    return True


def _abandon(store: BaseStore, entry: Abandoned) -> bool | None:
    # The note first, while nobody else gets the lock: the next holder may read it.
    if entry.note is not None:
        try:
            _write_first(store, entry, entry.note)
        except StoreUnavailable:
            raise
        except Exception:
            pass  # A store's mistake, which must not keep the lock.
    if entry.lease is not None and entry.lease._cooling is not None:
        return cooling.abandon(store, entry.lease, entry.lease._cooling)
    was_held = store.abandon(entry.name, entry.token)
    if was_held and entry.lease is None and entry.note is not None:
        # The acquire may have arrived between the two.
        store.unreserve(entry.note.key, entry.note.text)
    return was_held


def _write_first(store: BaseStore, entry: Abandoned, note: Note) -> None:
    if entry.lease is None:
        store.unreserve(note.key, note.text)
    elif (holder := store.get(entry.name)) is not None and holder.token == entry.token:
        store.set_note(note)
