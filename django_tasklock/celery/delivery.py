"""One delivery of a task's message: whose it is, and whether its run is still wanted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from celery.utils.time import maybe_iso8601

from ..exceptions import StoreUnavailable, TooManyAttempts
from ..lease import LockInfo
from ..owner import recorded
from ..stores.base import Note
from .requeue import HEADER, put_back
from .runnote import WENT_ON, RunNote

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["Delivery", "keeps_results"]

logger = logging.getLogger("django_tasklock")

REMEMBERED = 120.0
"""seconds for which an ended run is remembered where a result backend remembers it too: longer
than it takes to store a result"""
REMEMBERED_ALONE = 3600.0
"""seconds where nothing else remembers it: a copy may wait in a queue that long"""
ATTEMPTS_KEPT = 86400.0
"""seconds for which a start is remembered that no end has followed"""
AN_INSTANT = 1.0
"""seconds until a copy looks again whether the run it is a copy of has stored its result"""


def keeps_results(task: LockedTask) -> bool:
    """Whether the state of the task's calls can be asked of its result backend."""
    backend = task.backend
    return bool(getattr(backend, "persistent", False)) and not isinstance(backend, DisabledBackend)


class BackendSilent(Exception):
    """The result backend did not answer. The lock store may know enough all the same."""


class Delivery:
    """What the task's request says of the message that is being worked on.

    A broker delivers a message again when it is not sure of the first time: the worker was
    killed, the connection cut, the visibility timeout over. Such a copy carries the same task
    id, and is marked by the broker, or by `put_back`.
    """

    def __init__(self, task: LockedTask) -> None:
        request = task.request
        self.task = task
        self.request = request
        self.id: Any = request.id  # None for a direct call.
        # A call from inside a body shows the request of the run around it.
        self.own = not (request.called_directly or hasattr(request, "tasklock_lease"))
        """whether the request is that of this very call, made by Celery"""
        self.queued = self.own and bool(request.id) and not request.is_eager
        """whether there is a message that can go back to its queue"""
        # What the main process of the worker adds is not a header for the next message.
        headers: dict[str, Any] = dict(request.headers or {})
        ours = headers.pop(HEADER, None) or {}
        if ours or (self.own and request.headers is None):
            # Never None: of those Celery takes all that is set on the request for its headers.
            request.headers = headers
        self.ours: dict[str, Any] = ours if self.queued else {}
        self.token: str | None = self.ours.get("token")
        sent = self.ours.get("sent")
        self.sent = float(sent) if isinstance(sent, int | float) else None
        """when it was sent first, in seconds since the epoch, by the sender's clock; None where
        who sent it does not know the task"""
        redelivered = bool((request.delivery_info or {}).get("redelivered"))
        self.looks = int(self.ours.get("copy") or 0)
        """how often a copy was put back"""
        self.waits = bool(self.ours.get("tries"))
        """whether the lock was held before, and the message was put back to wait for it"""
        self.copy = self.queued and (redelivered or bool(self.ours.get("copy")))
        self._starts = 0
        """as many starts as the note says by our doing; 0: it says nothing by our doing"""

    @cached_property
    def key(self) -> str:
        """Names this try of this sending of the task among the store's notes."""
        # What replaces a task has its id, and what does not know the task says not when it sent.
        tries = f"{self.request.retries or 0}.{self.request.replaced_task_nesting or 0}"
        return f"run {self.id}:{tries}:{self.sent or ''}"

    @property
    def survives(self) -> bool:
        """Whether the message outlives its run, until the run has come to its end."""
        return self.queued and bool(self.task.acks_late)

    def is_by(self, holder: LockInfo) -> bool:
        """Whether the lock is held for this very task id."""
        return self.id is not None and holder.owner.task_id == recorded(self.id)

    def assert_wanted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Called under the lock: whether this run is still to be done.

        Raises `Ignore` for a copy whose run has ended, and puts one back whose run is just
        ending; raises `TooManyAttempts` for a message that has killed its workers too often,
        and `StoreUnavailable` when that could not be asked.
        """
        if not self.copy:
            return
        starts = self.drop_if_late(args, kwargs).starts
        if starts >= self.task.lock_max_attempts:
            raise TooManyAttempts(str(self.task.name), self.id, starts)
        if self.survives:
            self._starts = starts + 1
            self.task.locks.store.remember(self._started(self._starts))

    def drop_if_late(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RunNote:
        """`assert_wanted`, as far as it can be said without the lock: a copy that only looks must
        not pass for a run, or it turns others away."""
        text = self.task.locks.store.recall(self.key)
        note = RunNote.read(text)
        if note.went_on:
            self._ignore("its run has gone on in another message")
        try:
            state = self._state() if self._keeps_results() else None
        except BackendSilent as silent:
            if note.starts and note.ended_in is None:
                return note  # Nothing is stored of a run that has not ended.
            logger.warning(
                "the result backend does not say whether %s[%s] has run: %s",
                self.task.name,
                self.id,
                silent,
            )
            if text:
                # Kept for as long as it is all that is known; unless it has changed meanwhile.
                self.task.locks.store.reserve(self.key, text, REMEMBERED)
            put_back(self, args, kwargs, self._a_while)
        if state == states.SUCCESS:
            self._ignore("its result is stored")
        if note.ended_in is not None:
            # A failure that was stored after the run had ended is about the storing.
            if state is None or state in states.READY_STATES:
                self._ignore("its run has ended")
            if note.ended_in.alive() is not False:
                put_back(self, args, kwargs, self._a_while)
            # It died before it could store its result: the run does not count.
        return note

    def note_of_start(self) -> Note | None:
        """What the acquire should write, so that a run that dies is known for one.

        A copy reads first what its earlier runs have left: `assert_wanted` writes it then.
        """
        return self._started(1) if self.survives and not self.copy else None

    def started(self) -> None:
        """The acquire was granted, and has written its note."""
        if self.survives and not self.copy:
            self._starts = 1

    def interrupted(self) -> None:
        """The worker goes down in the middle of the acquire, which may have written its note."""
        if self.survives and not self.copy:
            with suppress(StoreUnavailable):
                self.task.locks.store.remember(self._started(0))

    def note_of_end(self, *, goes_on: bool = False) -> Note | None:
        """What the release should write, so that a late copy of this try is recognised.

        ``goes_on``: another message has been sent that goes on from here; no result is to come.
        """
        if not self.survives:
            return None
        if goes_on:
            return Note(self.key, WENT_ON, REMEMBERED_ALONE)
        ttl = REMEMBERED if self._keeps_results() else REMEMBERED_ALONE
        return Note(self.key, RunNote.ended(self._starts), ttl)

    def note_of_break(self) -> Note | None:
        """What the release of a run should write that broke off in good order, as at a shutdown:
        it is not held against the message."""
        return self._started(self._starts - 1) if self._starts else None

    def _started(self, starts: int) -> Note:
        return Note(self.key, RunNote.started(starts), ATTEMPTS_KEPT)

    def _state(self) -> str | None:
        """What the result backend knows; None if it cannot know."""
        try:
            meta: Any = self.task.backend.get_task_meta(self.id)
            state = str(meta["status"])
            if self.sent is not None and _was_before(meta.get("date_done"), self.sent):
                # Of an earlier use of the task id. Most backends never write over a success.
                return None if state == states.SUCCESS else states.PENDING
            return state
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            raise BackendSilent(str(error)) from error

    @property
    def _a_while(self) -> float:
        """Seconds until a copy looks again."""
        return float(AN_INSTANT * 2 ** min(self.looks, 5))

    def _keeps_results(self) -> bool:
        ignored = self.request.ignore_result or self.task.ignore_result
        return not ignored and keeps_results(self.task)

    def _ignore(self, why: str) -> None:
        logger.info("a late copy of %s[%s] is dropped: %s", self.task.name, self.id, why)
        raise Ignore(f"a late copy: {why}")


def _was_before(done: Any, moment: float) -> bool:
    """Whether a result was stored before a moment, in seconds since the epoch."""
    try:
        when = maybe_iso8601(done)
        if when is None:
            return False
        # A backend without time zones means UTC, or local time.
        zones = (timezone.utc, None) if when.tzinfo is None else (when.tzinfo,)
        return all(when.replace(tzinfo=zone).timestamp() < moment for zone in zones)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
