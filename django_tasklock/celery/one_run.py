"""One run for many calls: the conflicts "coalesce" and "join".

``on_conflict="coalesce"``: all calls that arrive during a run get one follow-up run.

A note of the store names the follow-up: of the messages that were refused, the one that was sent
last. It waits in the queue. The others are skipped, because it starts after they arrived; one that
waited already is skipped when it is delivered again. Under the lock, before its body reads
anything, the follow-up takes its name out of the note. The next call during its run becomes the
next follow-up.

A message that leaves the job to another first ends what it has reserved itself, and then looks
whether the other still waits. So no two messages leave it to each other, and no call is refused for
the sake of a message that leaves. If the note is lost, a message more runs, and never one less.

``on_conflict="join"``: a call that finds the lock held returns what the holder's run returns.

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

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from celery import states

from .._engine.history import reason_of
from .._engine.lease import Lease
from .._values.lock_info import LockInfo
from .._values.owner import Owner, recorded
from .._values.words import age
from ..exceptions import LockNotAcquired
from ..stores.records import MAX_TIMESTAMP_SECONDS, is_number
from .call import CALLED
from .message import Message, meta_of, was_before
from .note import Skip
from .requeue import LONGEST_DELAY_SECONDS, leave_worker, wait_for_lock, wait_for_store
from .run import Conflict, Run

# How long the follow-up's name is kept after its last check: it may be lost with its worker.
NOTE_SECONDS = 60.0
# The longest delay between two checks of the lock by the follow-up.
CHECK_SECONDS = 2.0

# The key of our header with the task id of the joined run; since when that has the lock, in whole
# seconds since the epoch; and how often its result was missing while nobody had the lock.
JOINED = "joined"
# How often a message looks again for such a result: a run releases its lock first, and then stores
# its result. After that the run has died, or its result is gone.
LOOKS = 3
# The delays between two looks, in seconds: of a message that was refused just now, and the longest.
SHORTEST, LONGEST = 0.5, 5.0


class FollowUp(NamedTuple):
    """The content of the note. The larger one was sent later."""

    # When the call was sent, in seconds since the epoch; by the sender's clock.
    moment: float = 0.0
    task_id: str = ""

    @classmethod
    def read(cls, text: str | None) -> FollowUp:
        """Return the note with this text. A text that is not a note counts as the oldest one."""
        with suppress(ValueError, TypeError, RecursionError):
            moment, task_id = json.loads(text or "")
            return cls(_moment(moment), str(task_id))
        return cls()

    @classmethod
    def of(cls, task_id: str, ours: Mapping[str, Any]) -> FollowUp:
        """Return the note that names the message with this id and this header of ours. A retry is
        as old as its call."""
        return cls(_moment(ours.get(CALLED)) or _moment(ours.get("sent")), recorded(task_id))

    def replaces(self, other: FollowUp) -> bool:
        """Return whether it was sent later than another message."""
        return self > other and self.task_id != other.task_id

    def over(self, text: str | None) -> str | None:
        """Return the note's text after this message was refused; None: it stays, for it names a
        message that was sent later."""
        return None if FollowUp.read(text) > self else json.dumps(self)


def _moment(number: Any) -> float:
    return float(number) if is_number(number, MAX_TIMESTAMP_SECONDS) else 0.0


class Coalesce(Conflict):
    """The message that was sent last becomes the follow-up, and the others are skipped."""

    outcome = "be done by a follow-up run"
    skips = waits = has_follow_up = True

    def start(self, run: Run, lease: Lease | None) -> None:
        """Leave the job to a later follow-up."""
        message, store = run.message, run.task.locks.store
        # One that died in its body may run again, whatever came after its start.
        if not message.follows or message.attempts.note.starts:
            return
        key, mine = _key(message), FollowUp.of(message.id, message.ours)
        while (later := FollowUp.read(store.get_note(key))).replaces(mine):
            if not message.reserved:
                raise Skip("coalesced", Owner(task=str(run.task.name), task_id=later.task_id))
            message.end_reserved()

    def answer(self, run: Run, holder: LockInfo) -> NoReturn:
        message = run.message
        if not message.queued:
            raise Skip(reason_of(holder), holder.owner)
        while not _name(message):
            if not message.reserved:
                raise Skip("coalesced", holder.owner)
            message.end_reserved()
        # A lock that cools ends when it says, unless an operator clears it.
        longest = LONGEST_DELAY_SECONDS if holder.cooling else CHECK_SECONDS
        message.request.expires = None
        wait_for_lock(message, holder, longest=longest)

    def reserves(self, message: Message) -> dict[str, str]:
        return {_key(message): json.dumps(FollowUp.of(message.id, message.ours))}


def _key(message: Message) -> str:
    return f"newest {message.task.name} {message.name}"


def _name(message: Message) -> bool:
    """Have the note name the message, which waits. Returns False if it names a later one."""
    if not (FollowUp.of(message.id, message.ours).moment or message.attempts.again):
        # Its sender does not know the task's class: then the order of the first refusals counts.
        message.ours[CALLED] = time.time()
    key, mine = _key(message), FollowUp.of(message.id, message.ours)
    message.reserved[key] = json.dumps(mine)
    named = FollowUp.read(message.task.locks.store.update_note(key, mine.over, NOTE_SECONDS))
    if named.task_id != mine.task_id:
        del message.reserved[key]
        return False
    # Perhaps another copy of it was first refused later.
    message.reserved[key], message.ours[CALLED] = json.dumps(named), named.moment
    return True


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
