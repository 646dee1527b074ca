"""``on_conflict="join"``: a call that finds the lock held returns what the holder's run returns.

The refused message notes whose run it has met, and goes back to its queue. Each time it is
delivered it asks the result backend, and leaves the lock alone while that run has it:

    JOINED ---its result is there---------------------------> the call returns that
      | ^ `---it has failed, or was revoked; or nobody has
      | |     the lock, and its result does not come--------> the call asks for the lock
      `-'
      the run has the lock still, or may just be storing its result

A call that asks for the lock runs itself, or joins the run that has the lock by then.
"""

from __future__ import annotations

from typing import NoReturn

from celery import states

from .._values.lock_info import LockInfo
from .._values.words import age
from ..exceptions import LockNotAcquired
from .message import meta_of, was_before
from .note import Skip
from .requeue import leave_worker, wait_for_lock, wait_for_store
from .run import Conflict, Run

# The key of our header with the task id of the joined run; since when that has the lock, in whole
# seconds since the epoch; and how often its result was missing while nobody had the lock.
JOINED = "joined"
# How often a message looks again for such a result: a run releases its lock first, and then stores
# its result. After that the run has died, or its result is gone.
LOOKS = 3
# The delays between two looks, in seconds: of a message that was refused just now, and the longest.
SHORTEST, LONGEST = 0.5, 5.0


class Join(Conflict):
    """The message goes back to its queue, and returns what the holder's run returns."""

    outcome, skips, waits = "return the result of the run that has the lock", True, True

    def judge(self, run: Run) -> None:
        """Look for the result of the run that the message has joined. Raise `Skip` with it, or
        requeue the message until it may be there."""
        message, task = run.message, run.task
        if (joined := message.ours.get(JOINED)) is None:
            return
        task_id, since, looks = joined
        if (meta := meta_of(task, task_id)) is None:
            wait_for_store(message)
        # What is older was stored when the task id was used before.
        state = states.PENDING if was_before(meta.get("date_done"), since) else meta["status"]
        if state == states.SUCCESS:
            raise Skip("joined", joined=(task_id, meta["result"]))
        if state == states.RETRY:
            leave_worker(message, LONGEST)
        if (holder := task.locks.store.find(message.name)) and holder.owner.alive() is False:
            holder = None  # Perhaps its message comes back. Who asks for the lock takes it over.
        if holder is None and state not in states.READY_STATES and looks < LOOKS:
            message.ours[JOINED] = task_id, since, looks + 1
            leave_worker(message, SHORTEST)
        if holder and holder.owner.task_id == task_id:
            self.answer(run, holder)

    def answer(self, run: Run, holder: LockInfo) -> NoReturn:
        message, owner, began = run.message, holder.owner, holder.acquired_at
        if not message.queued:
            raise LockNotAcquired(message.name, holder)
        if not (began and owner.runs and owner.task == run.task.name and run.task.shows_results):
            wait_for_lock(message, holder)
        # In whole seconds: a database may cut the rest off the time of a result.
        message.ours[JOINED] = owner.task_id, int(began.timestamp()), 0
        leave_worker(message, min(max(SHORTEST, age(began) / 4), LONGEST))
