"""``debounce``: of calls that keep coming, the last one runs. And ``on_conflict="replace"``: the
same without a delay, and a call that runs is replaced, too.

Each call sends its message, to be delivered when the debounce is over. Its moment is in the
message's header, and after the message was sent a note of the store names it as the last one. A
message whose turn comes is replaced, and skipped, if the note names a later moment. So a message is
replaced only by one that was sent. The note may be missing: the store has lost its data, or a
sender was killed before it wrote the note. A message more runs then, and never one less.

A moment is the sender's time of day, but always later than the one in the note: the clocks of hosts
may differ. A burst ends when its last message starts, or, with "replace", when the run of that has
ended. The next call begins a new one. With ``debounce_max`` it ends that long after its first call
in any case. Its last message is kept then: none of the next burst replaces it, so calls that keep
coming never push the work away for ever.

With "replace", a run whose call is replaced is recalled. For its body its lease counts as lost
then, but the lease lasts until the body has ended, and the newest message waits for that: there are
never two bodies. Then the run is skipped. What has returned before the recall counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from celery.exceptions import TaskPredicate

from .._engine.lease import Lease
from .._engine.stopping import recalled_for
from .._values.lock_info import LockInfo
from .._values.owner import Owner, recorded
from .._values.tokens import chance
from .._values.words import logger, printable
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore
from .call import MOMENT, Call, Send
from .note import Skip
from .options import TaskOptions
from .requeue import wait_for_lock
from .run import Run, Step

NANOSECONDS = 1_000_000_000
# How long after its time a message may start that has replaced others, and how long after the last
# message has started earlier ones are skipped.
NOTE_SECONDS = 86400.0
# In nanoseconds since the epoch, in the year 2262: a note with a later one is not ours.
LAST_MOMENT = 2**63 - 1
# The longest delay between two checks of the lock by a message that has replaced others.
CHECK_SECONDS = 2.0


class Burst(NamedTuple):
    """The content of the note: calls under one lock that belong together. Moments are in
    nanoseconds since the epoch."""

    last: int = 0
    # 0 if the last message has left.
    first: int = 0
    # Of the last message.
    task_id: str = ""
    # The moment of the last message of the burst before, while it has not left; or 0.
    kept: int = 0

    @classmethod
    def read(cls, text: str | None) -> Burst:
        """Return the note with this text. A text that is not a note counts as an old one."""
        with suppress(ValueError, TypeError, RecursionError):
            last, first, task_id, kept, *_ = json.loads(text or "")
            if all(type(each) is int and 0 <= each <= LAST_MOMENT for each in (last, first, kept)):
                return cls(last, first, str(task_id), kept)
        return cls()

    def joined_by(self, task_id: str, moment: int, longest: float | None = None) -> Burst:
        """Return the burst after a call. A later one than the last joins this burst, or begins a
        new one if this one has ended: ``longest`` seconds after its first call at the latest."""
        if moment <= self.last:
            return self  # Another sender was later and quicker.
        first, kept = self.first or moment, self.kept
        if longest is not None and moment >= first + longest * NANOSECONDS and not kept:
            first, kept = moment, self.last
        return Burst(moment, first, task_id, kept)

    def delay(self, now: int, debounce: float, longest: float | None) -> float:
        """Return the seconds from ``now`` until its last message is to run."""
        if longest is None:
            return debounce
        return max(min(debounce, (self.first - now) / NANOSECONDS + longest), 0.0)

    def replaces(self, moment: int) -> bool:
        """Return whether a later call replaces the one of this moment."""
        return 0 < moment < self.last and moment != self.kept

    def left_by(self, task_id: str, moment: int) -> Burst:
        """Return the burst after one of its messages has left it: if that is the last one, the next
        call begins a new burst."""
        if moment == self.kept:
            return self._replace(kept=0)
        return Burst(moment, task_id=task_id) if moment >= self.last else self


class Debounce(Step):
    """Delays calls, and skips those that a later one replaces."""

    def send(self, call: Call, go: Send) -> Any:
        """Delay the call, and note it as the last one. Where the store does not answer, the message
        is sent all the same. Returns what ``go`` returns."""
        task, options, longest = call.task, call.options, call.task.debounce_max
        given = any(options.get(each) for each in ("countdown", "eta", "replaced_task_nesting"))
        if given or call.eager or call.anyway or call.own:
            return go()
        try:
            seen = Burst.read(task.locks.store.get_note(_key(task, call.name)))
        except StoreUnavailable:
            options["countdown"] = task.debounce  # Without a moment, no other call replaces it.
            return go()
        now, task_id = time.time_ns(), recorded(call.id)
        # Two senders that add to the same moment should not come to the same one.
        moment = max(now, seen.last + chance.randrange(1, 1000))
        delay = seen.joined_by(task_id, moment, longest).delay(now, task.debounce or 0, longest)
        if call.seconds_to_expiry() <= delay:
            return go()
        call.note(**{MOMENT: moment})
        options["countdown"] = delay or None
        result = go()
        with suppress(StoreUnavailable):  # It does not replace earlier calls then.
            _note(task, call.name, lambda it: it.joined_by(task_id, moment, longest), delay)
        return result

    def judge(self, run: Run) -> None:
        """Raise `Skip` for a message that a later one replaces, as the note says."""
        message, task = run.message, run.task
        moment = message.count(MOMENT)  # 0 for a message that is not debounced.
        # With "debounce" one that died may run again, whatever came after its start.
        asks = moment and (task.conflict.replaces or not message.attempts.note.starts)
        if asks and (later := _later_call(task.locks.store, _key(task, message.name), moment)):
            raise _replaced(run, later)

    def refused(self, run: Run, holder: LockInfo) -> None:
        """Wait for the lock: calls that this one has replaced rely on it."""
        message = run.message
        if message.count(MOMENT) and run.conflict.skips:
            message.request.expires = None
            wait_for_lock(message, holder, longest=CHECK_SECONDS)

    def start(self, run: Run, lease: Lease | None) -> None:
        """Note that the message starts: the next call begins a new burst. With "replace", note what
        its sender may not have come to: that it was sent."""
        self.judge(run)
        message, task = run.message, run.task
        noted = Burst.joined_by if task.conflict.replaces else Burst.left_by
        if moment := message.count(MOMENT):
            _note(task, message.name, lambda it: noted(it, recorded(message.id), moment))

    def ended(self, run: Run, lease: Lease | None) -> None:
        """With "replace", note that the message has left its burst, where that counts."""
        message, task, moment = run.message, run.task, run.message.count(MOMENT)
        over = run.row.begun and not (run.error and message.comes_back(run.error))
        if moment and over and task.conflict.replaces and task.debounce_max is not None:
            with suppress(StoreUnavailable):
                _note(task, message.name, lambda it: it.left_by(recorded(message.id), moment))


@contextmanager
def recallable(run: Run, lease: Lease | None) -> Iterator[None]:
    """The context of a body that is recalled when a later call replaces its own. At its end, with a
    result or an error, a run that was recalled is skipped."""
    store, moment = run.task.locks.store, run.message.count(MOMENT)
    if lease is None or not moment:
        yield
        return
    # As the renewal thread, which has no tenant, can read it.
    key = store.keyed_note(_key(run.task, run.message.name))
    with recalled_for(lease, partial(_later_call, store, key, moment)) as later:
        try:
            yield
        except Exception as error:
            if not later or isinstance(error, TaskPredicate):
                raise
    if later:
        raise _replaced(run, later[0])


def _replaced(run: Run, later: str) -> Skip:
    """Return what ends the run of a call that the one with the task id ``later`` replaces."""
    task, names = run.task, (run.message, printable(later), run.message.name)
    logger.info("skipped %s: the later call %s replaces it, lock %s", *names)
    reason = "replaced" if task.conflict.replaces else "debounced"
    return Skip(reason, Owner(task=str(task.name), task_id=later))


def _later_call(store: BaseStore, key: str, moment: int) -> str:
    """Return the task id of the call that replaces the one of this moment; "": there is none."""
    burst = Burst.read(store.get_note(key))
    return burst.task_id if burst.replaces(moment) else ""


def _note(task: TaskOptions, name: str, change: Callable[[Burst], Burst], delay: float = 0) -> None:
    """Change the note of the calls under a lock."""

    def changed(text: str | None) -> str | None:
        after = change(before := Burst.read(text))
        return None if after == before else json.dumps(after)

    task.locks.store.update_note(_key(task, name), changed, delay + NOTE_SECONDS)


def _key(task: TaskOptions, name: str) -> str:
    return f"debounce {task.name} {name}"
