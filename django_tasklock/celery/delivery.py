"""One delivery of a task's message: whose it is, and whether its run is still wanted."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore

from ..exceptions import StoreUnavailable, TooManyAttempts
from ..lease import LockInfo
from ..owner import Owner, owner_record
from ..stores.base import Note
from .requeue import HEADER, put_back

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["Delivery", "keeps_results"]

logger = logging.getLogger("django_tasklock")

REMEMBERED = 120.0
"""seconds for which an ended run is remembered where a result backend remembers it too: longer
than it takes to store a result"""
REMEMBERED_ALONE = 3600.0
"""seconds where nothing else remembers it: a copy may wait in a queue that long"""
WENT_ON = "went on"
"""the text of the note of a try that ended in a retry, or in another task that replaced it"""
ATTEMPTS_KEPT = 86400.0
"""seconds for which the runs of one message are counted"""
AN_INSTANT = 1.0
"""seconds until a copy looks again whether the run it is a copy of has stored its result"""


def keeps_results(task: LockedTask) -> bool:
    """Whether the state of the task's calls can be asked of its result backend."""
    backend = task.backend
    return bool(getattr(backend, "persistent", False)) and not isinstance(backend, DisabledBackend)


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
        redelivered = bool((request.delivery_info or {}).get("redelivered"))
        self.looks = int(self.ours.get("copy") or 0)
        """how often a copy was put back"""
        self.waits = bool(self.ours.get("tries"))
        """whether the lock was held before, and the message was put back to wait for it"""
        self.copy = self.queued and (redelivered or bool(self.ours.get("copy")))

    @property
    def key(self) -> str:
        """Names this try of the task among the store's notes."""
        return f"{self.id}:{self.request.retries or 0}"

    @property
    def survives(self) -> bool:
        """Whether the message outlives its run, until the run has come to its end."""
        return self.queued and bool(self.task.acks_late)

    def is_by(self, holder: LockInfo) -> bool:
        """Whether the lock is held for this very task id."""
        return self.id is not None and holder.owner.task_id == self.id

    def assert_wanted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Called under the lock: whether this run is still to be done.

        Raises `Ignore` for a copy whose run has ended, and puts one back whose run is just
        ending; raises `TooManyAttempts` for a message that has killed its workers too often,
        and `StoreUnavailable` when that could not be asked.
        """
        if not self.copy:
            return
        self.drop_if_late(args, kwargs)
        runs = 1 + self.task.locks.store.tally(f"attempts {self.key}", ATTEMPTS_KEPT)
        if runs > self.task.lock_max_attempts:
            raise TooManyAttempts(str(self.task.name), self.id, runs - 1)

    def drop_if_late(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """`assert_wanted`, as far as it can be said without the lock: a copy that only looks must
        not pass for a run, or it turns others away."""
        store = self.task.locks.store
        results = self._keeps_results()
        state = self._state() if results else None
        if state == states.SUCCESS:
            self._ignore("its result is stored")
        ended = store.recall(f"ended {self.key}")
        if ended is not None:
            if ended == WENT_ON:
                self._ignore("its run has gone on in another message")
            # A failure that was stored after the run had ended is about the storing.
            if state is None or state in states.READY_STATES:
                self._ignore("its run has ended")
            if Owner.from_record(json.loads(ended)).alive() is not False:
                put_back(self, args, kwargs, AN_INSTANT * 2 ** min(self.looks, 5))
            # It died before it could store its result: the run does not count.

    def note(self, *, goes_on: bool = False) -> Note | None:
        """What the release should write, so that a late copy of this try is recognised.

        ``goes_on``: another message has been sent that goes on from here; no result is to come.
        """
        if not self.survives:
            return None
        if goes_on:
            return Note(f"ended {self.key}", WENT_ON, REMEMBERED_ALONE)
        ttl = REMEMBERED if self._keeps_results() else REMEMBERED_ALONE
        return Note(f"ended {self.key}", json.dumps(owner_record()), ttl)

    def interrupted(self) -> None:
        """The worker is going down in good order: that run is not held against the message."""
        if self.copy:
            with suppress(StoreUnavailable):
                self.task.locks.store.tally(f"attempts {self.key}", ATTEMPTS_KEPT, -1)

    def _state(self) -> str:
        try:
            return str(self.task.backend.get_task_meta(self.id)["status"])
        except Exception as error:
            raise StoreUnavailable("the result backend", str(error)) from error

    def _keeps_results(self) -> bool:
        ignored = self.request.ignore_result or self.task.ignore_result
        return not ignored and keeps_results(self.task)

    def _ignore(self, why: str) -> None:
        logger.info("a late copy of %s[%s] is dropped: %s", self.task.name, self.id, why)
        raise Ignore(f"a late copy: {why}")
