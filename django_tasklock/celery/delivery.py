"""One delivery of a task's message, and whether its run is still needed."""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple

from celery import states

from .received import END_NOTE_WITH_RESULT_SECONDS, Received
from .redelivered import is_old
from .runnote import NOT_NEEDED, RunNote
from .stored_result import BackendSilent, stored_state

__all__ = ["Delivery", "Verdict"]

logger = logging.getLogger("django_tasklock")

RESULT_CHECK_SECONDS = 1.0
"""after this time a redelivery checks again whether the first run has stored its result; doubled
with each check"""


class Verdict(NamedTuple):
    """What is to be done with a message."""

    action: Literal["run", "drop", "requeue", "fail"]
    reason: str = ""
    """with "drop": why no run is needed"""
    delay: float = 0.0
    """with "requeue": the delay in seconds"""
    starts: int = 0
    """with "run" and "fail": the number of earlier starts without an orderly end"""
    ended: bool = False
    """with "run": whether an earlier run has ended, and its process died before it could store the
    result"""


_RUN = Verdict("run")


class Delivery(Received):
    """Judges a message: whether it is to run, to be dropped, or to come back later."""

    def judge(self) -> Verdict:
        """Return what is to be done with the message, as far as it is known without the lock.

        Call it before the acquire: a redelivery that holds the lock only to find that its run has
        ended would turn others away. Raises `StoreUnavailable`.
        """
        if not (self.redelivered or is_old(self.task.app, self.ours)):
            return _RUN
        text = self.task.locks.store.get_note(self.key)
        if not self.redelivered:
            if not text:
                return self._judge_old()
            self.redelivered = True  # Another run of it has started.
        note = RunNote.read(text)
        if note.not_needed:
            return Verdict("drop", note.not_needed)
        if self._retry_has_started():
            return Verdict("drop", "its retry has started")
        try:
            state = self._stored_state() if self._keeps_results() else None
        except BackendSilent as silent:
            if note.starts and note.ended_in is None:
                # A run that has not ended has stored no result.
                return Verdict("run", starts=note.starts)
            logger.warning(
                "the result backend does not say whether %s[%s] has run: %s",
                self.task.name,
                self.id,
                silent,
            )
            if text:
                # Keep the note while it is the only record, unless it was changed meanwhile.
                self.task.locks.store.reserve(self.key, text, END_NOTE_WITH_RESULT_SECONDS)
            return self._check_later()
        if state == states.SUCCESS:
            return Verdict("drop", "its result is stored")
        if note.ended_in is not None:
            # A failure that is stored after the run has ended is a failure to store the result.
            if state is None or state in states.READY_STATES:
                return Verdict("drop", "its run has ended")
            if note.ended_in.alive() is not False:
                return self._check_later()
            # The process died before it could store the result: the run does not count, unless
            # the guard's row says so.
        return Verdict("run", starts=note.starts, ended=note.ended_in is not None)

    def judge_start(self) -> Verdict:
        """As `judge`, under the lock: "run" counts this start, "fail" means too many of them.

        Raises `StoreUnavailable`.
        """
        if not self.redelivered:
            return _RUN
        verdict = self.judge()
        if verdict.action != "run":
            return verdict
        if verdict.starts >= self.task.lock_max_attempts:
            return Verdict("fail", starts=verdict.starts)
        if self.survives:
            self._starts = verdict.starts + 1
            self._start = self._start_note(self._starts)
            self.task.locks.store.set_note(self._start)
        return verdict

    def _retry_has_started(self) -> bool:
        """Whether an earlier run has sent its retry, and could not note that: it was killed, or the
        broker had the retry and did not say so."""
        key = self.retry_key
        text = None if key is None else self.task.locks.store.get_note(key)
        return text not in (None, NOT_NEEDED)

    def _judge_old(self) -> Verdict:
        try:
            done = self._keeps_results() and self._stored_state() == states.SUCCESS
        except BackendSilent:
            return _RUN
        return Verdict("drop", "its result is stored") if done else _RUN

    def _check_later(self) -> Verdict:
        doublings = min(self.redelivery_requeues, 5)
        return Verdict("requeue", delay=float(RESULT_CHECK_SECONDS * 2**doublings))

    def _stored_state(self) -> str | None:
        return stored_state(self.task, self.id, self.sent, self.stored_before)
