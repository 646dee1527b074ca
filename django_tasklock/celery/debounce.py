"""``debounce``: of calls that keep coming, the last one runs.

Each call sends its message, to be delivered when the debounce is over. Its moment is in the
message's header, and after the message was sent a note of the store names it as the last one. A
message whose turn comes is replaced, and skipped, if the note names a later moment. So a message is
replaced only by one that was sent. The note may be missing: the store has lost its data, or a
sender was killed before it wrote the note. A message more runs then, and never one less.

A moment is the sender's time of day, but always later than the one in the note: the clocks of hosts
may differ. A burst ends when its last message starts, and the next call begins a new one. With
``debounce_max`` it ends that long after its first call, whether its last message has started or
not. That message is kept: none of the next burst replaces it, so calls that keep coming never push
the work away for ever.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from typing import Any, NamedTuple

from .._engine.lease import Lease
from .._values.lock_info import LockInfo
from .._values.owner import Owner, recorded
from .._values.printable import printable
from .._values.tokens import chance
from ..exceptions import StoreUnavailable
from .call import MOMENT, Call, Send
from .note import Skip
from .options import TaskOptions
from .requeue import wait_for_lock
from .run import Run, Step

logger = logging.getLogger("django_tasklock")

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
    # 0 if the last message has started.
    first: int = 0
    # Of the last message.
    task_id: str = ""
    # The moment of the last message of the burst before, while it has not started; or 0.
    kept: int = 0

    @classmethod
    def read(cls, text: str | None) -> Burst:
        """Return the note with this text. A text that is not a note counts as an old one."""
        with suppress(ValueError, TypeError, RecursionError):
            last, first, task_id, kept = json.loads(text or "")
            if all(type(each) is int and 0 <= each <= LAST_MOMENT for each in (last, first, kept)):
                return cls(last, first, str(task_id), kept)
        return cls()

    def joined_by(self, task_id: str, moment: int, longest: float | None) -> Burst:
        """Return the burst after a later call. The call joins this burst, or begins a new one if
        this one has ended: ``longest`` seconds after its first call at the latest."""
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

    def started(self, task_id: str, moment: int) -> Burst:
        """Return the burst after the start of one of its messages: if that is the last one, the
        next call begins a new burst."""
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
        if given or call.eager or call.anyway or call.own or task.debounce is None:
            return go()
        store, key = task.locks.store, _key(task, call.name)
        try:
            seen = Burst.read(store.get_note(key))
        except StoreUnavailable:
            options["countdown"] = task.debounce  # Without a moment, no other call replaces it.
            return go()
        now, task_id = time.time_ns(), recorded(call.id)
        # Two senders that add to the same moment should not come to the same one.
        moment = max(now, seen.last + chance.randrange(1, 1000))
        delay = seen.joined_by(task_id, moment, longest).delay(now, task.debounce, longest)
        if call.seconds_to_expiry() <= delay:
            return go()
        call.note(**{MOMENT: moment})
        options["countdown"] = delay or None
        result = go()

        def joined(text: str | None) -> str | None:
            burst = Burst.read(text)  # Another sender may have been later and quicker.
            later = moment < burst.last
            return None if later else json.dumps(burst.joined_by(task_id, moment, longest))

        with suppress(StoreUnavailable):  # It does not replace earlier calls then.
            store.update_note(key, joined, delay + NOTE_SECONDS)
        return result

    def judge(self, run: Run) -> None:
        """Raise `Skip` for a message that a later one replaces, as the note says."""
        message, store = run.message, run.task.locks.store
        moment = message.count(MOMENT)  # 0 for a message that is not debounced.
        burst = Burst.read(store.get_note(_key(run.task, message.name)) if moment else None)
        # One that died may run again, whatever came after its start.
        if burst.replaces(moment) and not run.message.attempts.note.starts:
            logger.info(
                "skipped %s: the later call %s replaces it, lock %s",
                message, printable(burst.task_id), message.name,
            )  # fmt: skip
            raise Skip("debounced", Owner(task=str(run.task.name), task_id=burst.task_id))

    def refused(self, run: Run, holder: LockInfo) -> None:
        """Wait for the lock: calls that this one has replaced rely on it."""
        message = run.message
        if message.count(MOMENT) and run.conflict.skips:
            message.request.expires = None
            wait_for_lock(message, holder, longest=CHECK_SECONDS)

    def start(self, run: Run, lease: Lease | None) -> None:
        """Note that the message starts: the next call begins a new burst."""
        self.judge(run)
        message = run.message
        if moment := message.count(MOMENT):

            def started(text: str | None) -> str:
                return json.dumps(Burst.read(text).started(recorded(message.id), moment))

            key = _key(run.task, message.name)
            run.task.locks.store.update_note(key, started, NOTE_SECONDS)


def _key(task: TaskOptions, name: str) -> str:
    return f"debounce {task.name} {name}"
