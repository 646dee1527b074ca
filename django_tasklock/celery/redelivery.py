"""May a message run that another run may have begun: after a death, a cut or a lost lease.

The note of its runs says it, and the result backend, if there is one.
"""

from __future__ import annotations

from typing import Any, NoReturn

from celery import states
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from .._compat.celery import counts_parts_once
from .._engine.acquiring import BY_RUN
from .._engine.lease import Lease
from .._values.lock_info import LockInfo
from .._values.owner import lives
from .._values.words import logger
from ..exceptions import StoreUnavailable, TooManyAttempts
from .message import Message, state_of, tell
from .note import CameBack
from .requeue import FIRST_DELAY_SECONDS, come_back
from .row import is_own_loss
from .run import Again, Run, Step

# After this time a redelivery checks again whether the first run has stored its result; doubled
# with each check.
RESULT_CHECK_SECONDS = 1.0


class Redelivery(Step):
    """Drops a redelivery whose work is done, and counts the runs that died."""

    def judge(self, run: Run) -> None:
        """Judge a redelivery without the lock: one that holds it only to find that its run has
        ended would turn others away."""
        message, attempts = run.message, run.message.attempts
        if not attempts.again:
            return
        note = attempts.read()
        known = note.says != "went on" and message.keeps_results
        state = state_of(message.task, message.id, message.ours.get("sent")) if known else None
        match note.says, state:
            case "went on", _:
                # What it sent has the same task id, and needs what is reserved.
                _drop(message, "its run continued in another message", CameBack)
            case _, states.SUCCESS:
                _drop(message, "its result is stored")
            case "unknown", _:  # A worker that knows more may get the message, or the note ends.
                _check_later(message)
            case "started", _:
                pass  # A run that has not ended has stored no result.
            case _, "SILENT":
                attempts.keep()
                _check_later(message)
            # A failure that is stored after the run has ended is a failure to store the result.
            case "ended", None | states.FAILURE | states.REVOKED:
                _drop(message, "its run has ended")
            case "ended", _ if lives(note.by) is not False:
                _check_later(message)
            case "ended", _:
                # The process died before it could store the result: the run does not count, unless
                # the guard's row says so.
                run.row.ended_before = True

    def refused(self, run: Run, holder: LockInfo) -> None:
        """Requeue a message that must not be skipped: its own run holds the lock, or no run does.

        In the second case the message may have begun, as a retry has. The holder is other code, or
        the lock cools after a run that has ended, perhaps badly.
        """
        message = run.message
        begun = message.attempts.again or bool(message.request.retries)
        no_run = holder.cooling or not holder.owner.runs
        lost = begun and no_run and run.conflict.skips and not run.conflict.waits
        if message.queued and (message.is_by(holder) or lost):
            come_back(message, holder.ttl)

    def start(self, run: Run, lease: Lease | None) -> None:
        """Count the start. `Again`: another run of this message has started or ended meanwhile."""
        message, attempts = run.message, run.message.attempts
        if not attempts.counts:
            return
        if lease is not None and attempts.again:
            if attempts.changed():
                raise Again
        elif lease is not None:
            attempts.counted = 1
            if not run.use.note_kept or attempts.change(1):
                return
            attempts.counted = 0
            # A sender that does not know the task's class does not say when it has sent it.
            if "sent" in message.ours and not message.follows:
                # Another note was there: this delivery is not marked, and comes after its
                # redelivery. A worker had it all the time, until its ETA or behind a long task.
                attempts.again = True
                raise Again
        if attempts.note.starts >= run.task.lock_max_attempts:
            if lease is not None:
                run.row.refuse(lease.fence)
            tell(message, "given_up", "too_many_attempts")
            raise TooManyAttempts(str(run.task.name), message.id, attempts.note.starts)
        attempts.count()

    def lost(self, run: Run, lease: Lease) -> None:
        """Start over, or raise `LeaseLost`, unless the row says that the result counts.

        On Redis both deliveries of a message have the same tag: the broker forgets the redelivery
        as well when this one is acknowledged. So if the redelivery has the lock, the message is
        requeued: if that run died, nothing would come back.
        """
        message = run.message
        if run.error is not None and not is_own_loss(run.error, lease):
            return
        locks = message.task.locks
        try:
            # The store may have the lease still, if it extended it and its reply never arrived.
            locks.clear(lease.name, lease.token, by=BY_RUN)
            holder = locks.get(lease.name)
        except StoreUnavailable:
            holder = None
        if message.attempts.counts and holder is not None and message.is_by(holder):
            come_back(message, holder.ttl)
        if run.row.finished:
            return
        # With a fence a later run has claimed the row. If it is gone, the work is left.
        unfinished = not run.completed or run.row.fence is not None
        held = holder is not None and holder.held_by is None and not holder.unknown
        nobody = not held or lease.slot is not None
        if message.attempts.counts and unfinished and nobody:
            come_back(message, FIRST_DELAY_SECONDS, "lease_lost")
        lease.assert_held()


def _check_later(message: Message) -> NoReturn:
    come_back(message, RESULT_CHECK_SECONDS * 2 ** min(message.count("copy"), 5))


def _drop(message: Message, why: str, end: type[Ignore] = Ignore) -> NoReturn:
    logger.info("dropped a redelivery of %s: %s", message, why)
    tell(message, "dropped", "redelivery")
    _count_part(message)
    if end is not CameBack:
        message.over()
    raise end(f"dropped a redelivery: {why}")


def _count_part(message: Message) -> None:
    """Count a dropped redelivery in its chord, if its result is stored.

    Celery stores the result first, and then counts the part. A run that was killed between the two
    has not counted it, and the chord's body would never run. If the backend does not answer, this
    is logged, not raised.
    """
    request, backend = message.request, message.task.backend
    if not request.chord or not counts_parts_once(backend):
        return
    try:
        meta: Any = backend.get_task_meta(message.id)
        if meta["status"] == states.SUCCESS:
            backend.on_chord_part_return(request, states.SUCCESS, meta["result"])
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:
        logger.warning("%s could not be counted in its chord: %s", message, error)
