"""``on_conflict="coalesce"``: all calls that arrive during a run get one follow-up run.

A note names the follow-up: the first message that was refused. It waits in the queue. The other
messages are skipped, because the follow-up starts after they arrived; before its body reads
anything it takes the note back, and the next call during its run becomes the next follow-up.
"""

from __future__ import annotations

from .._engine.lease import Lease
from .._values.lock_info import LockInfo
from .message import Skip
from .options import TaskOptions
from .requeue import LONGEST_DELAY_SECONDS, wait_for_lock
from .run import Run, Step

__all__ = ["FOLLOW_UP_CHECK_SECONDS", "Coalesce", "end_follow_up"]

# How long the follow-up's name is kept after its last check: it may be lost with its worker.
FOLLOW_UP_NOTE_SECONDS = 60.0
# The longest delay between two checks of the lock by the follow-up.
FOLLOW_UP_CHECK_SECONDS = 2.0


class Coalesce(Step):
    """Makes one message the follow-up, and skips the others."""

    def refused(self, run: Run, holder: LockInfo) -> bool:
        """Wait for the lock, or raise `Skip` if another message does."""
        message = run.message
        if not message.queued:
            return False
        key, store = _key(message.task, message.name), message.task.locks.store
        if store.reserve(key, message.id, FOLLOW_UP_NOTE_SECONDS) is not None:
            raise Skip("coalesced", holder.owner)
        # A lock that cools ends when it says, unless an operator clears it.
        longest = LONGEST_DELAY_SECONDS if holder.cooling else FOLLOW_UP_CHECK_SECONDS
        return wait_for_lock(message, holder, longest=longest, expires=False)

    def start(self, run: Run, lease: Lease) -> bool:
        """Take the note back, before the body reads anything."""
        if run.message.queued:
            end_follow_up(run.task, run.message.name, run.message.id)
        return True

    def over(self, run: Run) -> None:
        """Take the note back as soon as the store answers: calls would be skipped for it."""
        if run.message.queued:
            run.message.end(_key(run.task, run.message.name), FOLLOW_UP_NOTE_SECONDS)


def end_follow_up(task: TaskOptions, name: str, task_id: str) -> None:
    """Take the note back, if it names this task id. Raises `StoreUnavailable`."""
    task.locks.store.unreserve(_key(task, name), task_id)


def _key(task: TaskOptions, name: str) -> str:
    return f"next {task.name} {name}"
