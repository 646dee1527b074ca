"""The history of locks: what happened is queued in the process, and written in batches.

Nothing is written for a lock that is taken and released without anybody in the way. For everything
else the caller only appends to a queue, and the store's thread writes what has come together in a
second. Events are for people who look later: those that cannot be written are dropped. What has
become of a refused call says more than its refusal: the two are one event.

The marker of a call of a task that is not run says the same as its event.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from .._values import clock
from .._values.lock_info import Event, Kind, LockInfo, shown
from .._values.owner import Owner, recorded
from .._values.words import logger
from ..exceptions import StoreUnavailable
from ..signals import SkipReason
from ..stores.base import BaseStore
from .jobs import MOST_EVENTS, jobs_of

# How long events come together before they are written.
BATCH_SECONDS = 1.0
# So many are written before the thread looks after leases again.
EVENTS_AT_ONCE = 500


def note_event(
    store: BaseStore,
    kind: Kind,
    name: str,
    owner: Mapping[str, Any] | Owner,
    *,
    holder: LockInfo | Owner | None = None,
    **fields: Any,
) -> None:
    """Have an event written, if the store keeps a history. Asks no server, waits for nothing.

    ``owner`` is the owner, or its record. ``fields`` are further ones of `Event`.
    """
    if not store.supports_history:
        return
    jobs, now = jobs_of(store), clock.now()
    jobs.events.append((time.time(), kind, name, owner, holder, fields))
    if now >= jobs.writes_at:
        jobs.writes_at = now + BATCH_SECONDS
        jobs.later(partial(_write_batch, store), BATCH_SECONDS)


def write_events(store: BaseStore, most: int = MOST_EVENTS) -> float | None:
    """Write the events that are not written yet, ``most`` at once, in the calling thread. Returns
    0.0 if there are more. Raises nothing."""
    events, found = jobs_of(store).events, dict[object, Event]()
    with suppress(IndexError):  # Another thread may empty it at the same time.
        for _ in range(most):
            event = _event(store, *events.popleft())
            owner, refused = event.owner, event.kind == "refused"
            key = event.name, owner.task, owner.task_id, owner.held_by
            answers = event.holder is not None or event.kind == "given up"
            if answers and (before := found.pop(key, None)) is not None:
                both, holder = together([event, before]), event.holder or before.holder
                event = both if refused else replace(both, holder=holder, count=1, since=None)
            found[key if refused else object()] = event
    try:
        if found:
            store.record(list(found.values()))
    except StoreUnavailable as error:
        logger.debug("the history of the lock store %s was not written: %s", store.alias, error)
    return 0.0 if events else None


def _write_batch(store: BaseStore) -> float | None:
    """The thread's job."""
    jobs = jobs_of(store)
    jobs.writes = True
    try:
        return write_events(store, EVENTS_AT_ONCE)
    finally:
        jobs.writes = False


def finish_writing(store: BaseStore) -> None:
    """Write all events of this process, and wait for those that the thread writes just now."""
    write_events(store)
    while jobs_of(store).writes:
        time.sleep(0.001)


def together(events: Sequence[Event]) -> Event:
    """Return one event for some that are alike, the newest first."""
    newest, oldest = events[0], events[-1]
    seconds = max((each.seconds for each in events if each.seconds is not None), default=None)
    count, since = sum(each.count for each in events), oldest.since or oldest.at
    return replace(newest, seconds=seconds, count=count, since=since)


def _event(
    store: BaseStore, at: float, kind: Kind, name: str, owner: Any, holder: Any, fields: Any
) -> Event:
    if isinstance(holder, LockInfo):
        holder = holder.owner
    texts = {key: recorded(fields[key]) for key in ("by", "reason") if fields.get(key) is not None}
    return Event(
        kind, shown(name), store.alias, datetime.fromtimestamp(at, timezone.utc),
        _for_people(owner), None if holder is None else _for_people(holder), **{**fields, **texts},
    )  # fmt: skip


def _for_people(owner: Mapping[str, Any] | Owner) -> Owner:
    """Without the fields for programs, which take half of the room."""
    known = owner if isinstance(owner, Owner) else Owner.from_record(owner)
    return replace(known, boot=None, pidns=None, timens=None, start=None, group=None, inside=None)


def reason_of(holder: LockInfo) -> SkipReason:
    """Return the reason of a call that is skipped because ``holder`` has its lock.

    Only "already_processing" may mean that somebody does the work.
    """
    if holder.held_by is not None:
        return "held_by_operator"
    return "cooling_down" if holder.cooling else "already_processing"


def skipped(
    store: BaseStore, name: str, owner: dict[str, Any], reason: SkipReason, holder: Owner | None
) -> dict[str, Any]:
    """Note that a task is skipped, and return what it returns: plain JSON.

    ``name`` is that of the lock, and ``holder`` who has it, or the task that does the work instead;
    None: nobody. ``owner`` is the record of the skipped call.
    """
    note_event(store, "skipped", name, owner, holder=holder, reason=reason)
    marker: dict[str, Any] = {
        "status": "skipped", "reason": reason, "lock": name,
        "holder": None if holder is None else holder.task_id,
    }  # fmt: skip
    if holder is not None and holder.held_by is not None:
        marker |= {"held_by": holder.held_by, "hold_reason": holder.reason}
    return marker
