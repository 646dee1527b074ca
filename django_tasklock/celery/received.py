"""A task's message as a worker has received it, and the notes of its runs."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import Any

from celery.exceptions import Ignore, Retry

from .._compat.celery import replacements
from .._values.lock_info import LockInfo
from .._values.owner_record import recorded
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import Note
from .base import TaskBase
from .headers import BESIDE, DELIVERY_COUNT, FIRST, HEADER, MOMENT, REFUSED
from .redelivered import is_marked, is_uuid
from .runnote import NOT_NEEDED, WENT_ON, RunNote
from .stored_result import keeps_results, stored_before

__all__ = ["END_NOTE_WITH_RESULT_SECONDS", "Received"]

END_NOTE_WITH_RESULT_SECONDS = 120.0
"""how long the note of an ended run is kept where a result backend also knows the result: longer
than it takes to store a result"""
END_NOTE_SECONDS = 3600.0
"""how long the note is kept where nothing else knows that the run has ended: a redelivery may wait
in a queue that long"""
START_NOTE_SECONDS = 86400.0
"""how long a start is counted that had no orderly end"""


class Received:
    """What the task's request says about the message that is being worked on.

    A broker delivers a message again if it does not know that the first delivery succeeded: the
    worker was killed, the connection was cut, or the visibility timeout is over. A redelivery has
    the same task id, and is marked by the broker or by `requeue_redelivery`. An unmarked message
    may have been delivered before as well: see `redelivered`.
    """

    def __init__(self, task: TaskBase) -> None:
        request = task.request
        self.task = task
        self.request = request
        self.id: Any = request.id  # None for a direct call.
        # A call from inside a body shows the request of the run around it.
        self.own = not (request.called_directly or hasattr(request, "tasklock_lease"))
        """whether Celery made the request for this very call"""
        self.queued = self.own and bool(request.id) and not request.is_eager
        """whether there is a message that can be requeued"""
        self.survives = self.queued and bool(task.acks_late)
        """whether the broker keeps the message until the run has ended"""
        # What the worker's main process adds is not a header of the next message.
        headers: dict[str, Any] = dict(request.headers or {})
        ours = headers.pop(HEADER, None) or {}
        if ours or (self.own and request.headers is None):
            # Never None: Celery would take all attributes of the request for its headers.
            request.headers = headers
        count = headers.get(DELIVERY_COUNT)
        self.deliveries = count if type(count) is int else 0
        """how often a queue that counts deliveries has delivered the message before"""
        self.ours: dict[str, Any] = ours if self.queued else {}
        self.handed: Any = ours if self.own else None
        """where the handle of the caller's lease is, if there is one; of an eager call too"""
        self.token: str | None = self.ours.get("token")
        sent = self.ours.get("sent")
        self.sent = float(sent) if isinstance(sent, int | float) else None
        """when this try was first sent, in seconds since the epoch by the sender's clock; None if
        the sender does not know the task's class"""
        first = self.ours.get(FIRST)
        self.first = float(first) if isinstance(first, int | float) else self.sent
        """as ``sent``, of the first try; 0.0 if that one does not say when it was sent"""
        moment = self.ours.get(MOMENT)
        self.moment: int | None = moment if type(moment) is int else None
        """the moment of a debounced call, in nanoseconds since the epoch; None for other calls"""
        self.redelivery_requeues = int(self.ours.get("copy") or 0)
        """how often the message was requeued as a redelivery"""
        self.refused_since = self._refused_since() if REFUSED in self.ours else None
        """when a holder of the lock first refused this try of the message, in seconds since the
        epoch; None if it was not refused, or was requeued because of an outage after that"""
        self.redelivered = self.queued and is_marked(request, self.ours)
        """whether another run of this message may have started earlier"""
        self.followed_by = _followed_by(request)
        """what the message says of what is to follow its run, as options of a message; the body may
        change the request"""
        self.reserved = True
        """whether the queue may be reserved for this message: neither its start nor its end has
        ended the reservation yet"""
        self.stored_before = stored_before(request) if self.own else None
        """what the result backend had before this delivery; None if Celery has not changed it"""
        self._starts = 0
        """the number of starts that we wrote into the note; 0 if we wrote none"""
        self._start: Note | None = None
        """the note of our start: what our acquire writes, or what was written last"""

    @property
    def rejectable(self) -> bool:
        """Whether the broker delivers the message again if it is rejected: it has the message
        still, and its queue does not drop it for having delivered it too often."""
        return bool(self.task.acks_late) and self.deliveries < self.task.lock_max_attempts

    @cached_property
    def key(self) -> str:
        """The store's name for the note of this try of this sending of the task.

        A try that was sent twice, because a run was killed when it had sent it, has one note.
        """
        beside = " beside" if self.ours.get(BESIDE) else ""
        return self._key_of(self.request.retries or 0) + beside

    @property
    def retry_key(self) -> str | None:
        """As ``key``, of the retry in which an earlier run of this try may have ended. None without
        such a run, or if that key may be another message's."""
        if self.redelivered and self.survives and (self.sent is not None or is_uuid(self.id)):
            return self._key_of((self.request.retries or 0) + 1)
        return None

    def _key_of(self, retries: int) -> str:
        # A replacement has the id of the task that it replaces, and not every sender says when.
        tries = f"{retries}.{replacements(self.request)}"
        return self.task.locks.store.keyed_note(f"run {self.id}:{tries}:{self.first or ''}")

    def _refused_since(self) -> float | None:
        # Messages of older versions do not say why they were requeued: they count as not refused.
        match self.ours.get(REFUSED):
            # A retry that Celery sends for a dead child has the headers of the try before.
            case [int() | float() as since, retries] if retries == (self.request.retries or 0):
                return float(since)
        return None

    def is_by(self, holder: LockInfo) -> bool:
        """Return whether the lock's holder has this very task id."""
        return self.id is not None and holder.owner.task_id == recorded(self.id)

    def comes_back(self, error: BaseException) -> bool:
        """Return whether the message, or one in its place, is delivered again after this error."""
        if isinstance(error, Exception):
            return isinstance(error, Ignore | Retry) or bool(getattr(error, "requeue", False))
        return self.survives

    def _keeps_results(self) -> bool:
        ignored = self.request.ignore_result or self.task.ignore_result
        return not ignored and keeps_results(self.task)

    # ---------------------------------------------------------------------------- notes of the run

    def note_of_start(self) -> Note | None:
        """Return the note that the acquire writes, so that a run that dies can be counted.

        None for a redelivery: it must read the note of its earlier runs first, and `judge_start`
        writes the new one.
        """
        if not self.survives or self.redelivered:
            return None
        # Its own text: if the acquire turns out to be in vain, nobody else's note is removed.
        self._start = Note(self.key, RunNote.started(1, new_token()), START_NOTE_SECONDS)
        return self._start

    def started(self, *, kept: bool, needed: bool = False) -> None:
        """Record that the lock is ours, with `note_of_start`.

        ``kept``: another note was there, and is there still. So another run of this message has
        started, though this delivery is not marked as a redelivery. ``needed``: this one runs all
        the same, because others rely on it. Raises `StoreUnavailable`.
        """
        if self._start is None or self.redelivered:
            return
        if kept and not needed and (self.sent is not None or is_uuid(self.id)):
            self.redelivered = True
            return
        if kept:
            # Its run counts by itself. As that of a task id that is used again, by a sender that
            # does not say when it has sent.
            self.task.locks.store.set_note(self._start)
        self._starts = 1

    def interrupted(self) -> None:
        """Remove the note of an acquire that the worker's shutdown interrupted, if it wrote one."""
        if self._start is not None:
            with suppress(StoreUnavailable):
                self.task.locks.store.unreserve(self._start.key, self._start.text)

    def take_start_back(self) -> None:
        """Take back the start of a run that holds the lock, unless the run has ended meanwhile.

        Its own thread may be writing the note of its end at this moment, and that note must stay.
        Raises `StoreUnavailable`.
        """
        note, store = self.note_of_interruption(), self.task.locks.store
        if note is None or self._start is None:
            return
        if note.text:
            store.reserve(note.key, note.text, note.ttl, over=self._start.text)
        else:
            store.unreserve(note.key, self._start.text)

    def has_ended(self) -> bool:
        """Return whether the note says that a run of this message has ended. Raises
        `StoreUnavailable`."""
        note = RunNote.read(self.task.locks.store.get_note(self.key))
        return bool(note.not_needed) or note.ended_in is not None

    def note_of_end(self, *, goes_on: bool = False) -> Note | None:
        """Return the note that the release writes, so that a redelivery of this try is dropped.

        ``goes_on``: another message was sent that continues the work, and no result will come.
        """
        if not self.survives:
            return None
        if goes_on:
            return Note(self.key, WENT_ON, END_NOTE_SECONDS)
        ttl = END_NOTE_WITH_RESULT_SECONDS if self._keeps_results() else END_NOTE_SECONDS
        return Note(self.key, RunNote.ended(self._starts), ttl)

    def note_for_retry(self) -> Note | None:
        """Return the note with which a retry is dropped in which an earlier run of this try may
        have ended: this run has done the work."""
        key = self.retry_key
        return None if key is None else Note(key, NOT_NEEDED, END_NOTE_SECONDS)

    def note_of_interruption(self) -> Note | None:
        """Return the note that the release of an interrupted run writes, as at a shutdown.

        It takes the start back, which does not count as a death.
        """
        return self._start_note(self._starts - 1) if self._starts else None

    def _start_note(self, starts: int) -> Note:
        return Note(self.key, RunNote.started(starts), START_NOTE_SECONDS)


def _followed_by(request: Any) -> dict[str, Any]:
    chain, callbacks, errbacks = request.chain, request.callbacks, request.errbacks
    return {
        "chain": chain and [*chain],
        "chord": request.chord,
        "link": callbacks and [*callbacks],
        "link_error": errbacks and [*errbacks],
    }
