"""The life of one message: judge -> acquire -> start -> claim -> body -> finish -> release.

A special behaviour is one file with one `Step`, which is asked at a named point. What ends a
message is an exception: `Skip`, Celery's `Ignore` and `Reject`, or an error.

A run that waits for its lock leaves its worker free to shut down. A warm shutdown waits for the
runs, and one that waits for a lock may take for ever. It has begun nothing, so its message goes
back to the queue, and another worker waits on. The main process is told to shut down, and its pool
children are not. They share memory with it, which was there before they were forked.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import Any

from celery.exceptions import TaskPredicate
from celery.signals import worker_shutting_down

from .._engine.acquiring import Acquiring
from .._engine.lease import Lease, Use
from .._engine.own_token import Cooling
from .._engine.stopping import call_until_lost
from .._engine.waiting import Pause, blocking
from .._values import clock
from .._values.lock_info import LockInfo
from .._values.owner import INSIDE
from .._values.words import logger
from ..exceptions import LockNotAcquired, RequeueFailed, StoreUnavailable, TooManyAttempts
from ..guards import AWAY
from ..stores.base import Grant, Note, Refusal
from .call import Call, Send
from .message import Message, skip, tell
from .note import CameBack, RowTaken, Skip
from .requeue import come_back, leave_worker, retry_or_raise, wait_for_store, wait_freely
from .row import Row, Unleased

# How often a run that waits looks whether its worker shuts down.
LOOK_SECONDS = 0.25
# How long a message waits for a run of the same task id, which may just be ending.
OWN_RUN_WAIT_SECONDS = 1.0
# How often a message is judged at most; each new one needs another run of it that starts or ends at
# this very moment.
MOST_VERDICTS = 10
# The reasons of `task_not_run` for a message that fails before its start.
GIVEN_UP = ((LockNotAcquired, "held"), ((StoreUnavailable, *AWAY), "outage"))
# What is no failure, or would be one again however often Celery retried the message.
FINAL = TaskPredicate, Skip, RequeueFailed, TooManyAttempts
# The context of a body, or of a row, that needs none.
NOTHING = nullcontext()


class Again(Exception):
    """The message is to be judged, and its lock to be asked for, once more."""


class Step:
    """What a special behaviour does at the named points of a message's life. By default nothing."""

    def send(self, call: Call, go: Send) -> Any:
        """Called when a message is sent: ``go()`` sends it. Returns the result."""
        return go()

    def judge(self, run: Run) -> None:
        """Called before the lock is asked for. Raises what ends the message."""

    def adopt(self, run: Run) -> Lease | None:
        """Called instead of the acquire. Returns a lease that is there already, or None."""
        return None

    def refused(self, run: Run, holder: LockInfo) -> None:
        """Called when another has the lock; not for a message that waits for the end of an
        operator's hold. Raises what ends the message, or `Again`."""

    def start(self, run: Run, lease: Lease | None) -> None:
        """Called before the row is claimed, under the lock; or, with None, beside the one that has
        the lock. Raises what ends the message, or, under the lock, `Again`."""

    def ended(self, run: Run, lease: Lease | None) -> None:
        """Called when the run has ended, before its lease is released; also if `start` has raised.
        Raises nothing."""

    def lost(self, run: Run, lease: Lease) -> None:
        """Called when the release finds that the lease was lost. Raises, unless the run counts."""


def by_point(steps: Sequence[Step]) -> Mapping[str, Sequence[Step]]:
    """Return those that do something at a point of a message's life, for each point by its name."""
    return {
        point: [each for each in steps if getattr(type(each), point) is not does_nothing]
        for point, does_nothing in vars(Step).items()
        if not point.startswith("_")
    }


class Conflict(Step):
    """A value of ``on_conflict``: what becomes of a call whose lock another has. It is the last
    step of its task, for what it does at other points of a message's life. It has no state."""

    # What becomes of a refused call, in words: it would "be skipped".
    outcome: str
    # Whether a refused call may succeed without a run of its own.
    skips = False
    # Whether a refused message goes back to its queue; then it keeps what it has reserved.
    waits = False
    # Whether a refused message waits for others, too: they are skipped, and rely on its run.
    has_follow_up = False
    # Whether a later call replaces an earlier one that runs.
    replaces = False

    def chosen(self, run: Run, holder: LockInfo) -> Conflict:
        """Return the conflict that counts for this refusal. Raises what ends the call."""
        return self

    def answer(self, run: Run, holder: LockInfo) -> Any:
        """Called when another has the lock, and no step has kept the message. Returns the call's
        result, or raises what ends the call."""
        raise NotImplementedError

    def body(self, run: Run, lease: Lease | None) -> Any:
        """Return the context of the body. At its end it raises what ends the run instead."""
        return NOTHING

    def reserves(self, message: Message) -> dict[str, str]:
        """Return the keys of the store, and their texts, that the message may reserve when it is
        refused."""
        return {}


class AcquiringInQueue(Acquiring):
    """That of a message, which waits for the end of an operator's hold in its queue, and not in its
    worker."""

    def _in_vain(self, holder: LockInfo) -> bool:
        return holder.held_by is not None or super()._in_vain(holder)


class Run:
    """One call of ``task``. Calling it returns what the task returns, or raises."""

    def __init__(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.task = task
        self.called = args, kwargs
        self.message = message = Message(task, task.request, args, kwargs)
        # What is the same for two calls that exclude each other.
        self.lock = task.lock_store, message.name, message.named.slots > 1
        self.row = Row(message)
        self.steps: Mapping[str, Sequence[Step]] = task.steps
        self.conflict: Conflict = task.conflict  # Once it was refused, what counts for that.
        self.lease: Any = None  # That of the body: a `Lease`, or `Unleased`.
        # A direct call inside a run has the run's task id: its own result is stored nowhere.
        more: Any = {INSIDE: True} if task.on_conflict == "join" and not message.own else {}
        # Its lease is given up if a signal's exception loses this run.
        self.use = Use(task=task.name, task_id=message.id, **more)
        self.permits: list[Lease] = []  # Of ``lock_limits``, in their order.
        self.completed = False  # Whether the body has returned.
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        message = self.message
        try:
            message.refuse_broadcast()
            return self._with_retries()
        except Skip as why:
            message.over()
            return skip(message, why)
        except BaseException as error:
            self.use.drop()  # A signal's exception may have come between two steps.
            if not message.comes_back(error):
                message.over()
                for kinds, reason in GIVEN_UP:
                    if isinstance(error, kinds) and not self.row.begun:
                        tell(message, "given_up", reason, holder=getattr(error, "holder", None))
            if isinstance(error, CameBack):
                # Celery copies and formats each frame, twice.
                raise error.with_traceback(None) from None
            raise
        finally:
            self.error = None  # Its traceback refers to this run.

    def _with_retries(self) -> Any:
        """As `_call`; Celery's ``autoretry_for`` has its say about the errors that are not the
        body's: those it has seen."""
        try:
            return self._call()
        except Exception as error:
            if isinstance(error, FINAL) or (self.row.begun and not self.completed):
                raise
            retry_or_raise(self.message, error)

    def _call(self) -> Any:
        for run in runs.get():
            if run.lock == self.lock and run.lease.lasts:
                # A call inside a run with the same lock. That run may have its row as well.
                claims = self.row.key not in [each.row.key for each in runs.get()]
                return self._work(run.lease, claims=claims)
        if self.task.guard:
            self.task.guard.refuse_atomic()  # Here, whoever has the lock.
        wait = self.task.lock_wait
        try:
            for _ in range(MOST_VERDICTS):
                with suppress(Again):
                    won = self._ask(wait)
                    if isinstance(won, Lease):
                        return self.perform(won)
                    wait = 0  # It has waited.
                    if (won.held_by is not None or won.unknown) and self.message.queued:
                        wait_freely(self.message, won, self.message.name, self.message.named.slots)
                    if not (self.message.queued and self.message.is_by(won)):
                        self.conflict = self.task.conflict.chosen(self, won)
                    for step in self.steps["refused"]:
                        step.refused(self, won)
                    return self.conflict.answer(self, won)
            come_back(self.message, None)
        except (StoreUnavailable, *AWAY) as error:
            return self._outage(error)

    def _ask(self, wait: float | None) -> Lease | LockInfo:
        """Judge, then adopt or acquire. Returns the lease, or the holder."""
        for step in self.steps["judge"]:
            step.judge(self)
        for step in self.steps["adopt"]:
            if (lease := step.adopt(self)) is not None:
                self.use.note_kept = True  # There was no acquire to write one.
                if (cooling := self.task.how().cooling) is not None:
                    lease.cool(Cooling(cooling))
                return lease
        won = self._acquire(wait)
        if isinstance(won, LockInfo) and self.message.is_by(won) and not won.cooling:
            return self._acquire(OWN_RUN_WAIT_SECONDS)
        return won

    def _acquire(self, wait: float | None) -> Lease | LockInfo:
        task, message = self.task, self.message
        how = task.how(wait, message.named.slots)
        kind = AcquiringInQueue if message.queued else Acquiring
        acquiring = kind(
            how, message.name, self.use,
            task.naming.template, message.attempts.token, message.attempts.note_of_start(),
            tries=message.count("tries"),
        )  # fmt: skip
        try:
            return blocking(acquiring.steps(), _wait if message.queued else Pause.wait)
        except _ShutsDown:
            leave_worker(message)

    def perform(self, lease: Lease | None, report: Any = None, *, starts: bool = True) -> Any:
        """Start, claim, body, finish; and whatever happens, the release. Without a lease, on the
        guard alone: then the end is noted, if the store answers. Returns what the body returns.
        Raises `Again` and `RowTaken`.

        ``report``: called before the body. ``starts``: whether the store can note the start.
        """
        self.error = None  # That of a start under the lock, at which the store fell silent.
        try:
            for step in self.steps["start"] if starts else ():
                step.start(self, lease)
            return self._work(lease, report=report)
        except BaseException as error:
            self.error = error
            raise
        finally:
            for step in self.steps["ended"] if starts else ():
                step.ended(self, lease)
            if lease is None:
                with suppress(StoreUnavailable):
                    self._note()
            elif not self._release(lease):
                for step in self.steps["lost"]:
                    step.lost(self, lease)

    def _work(self, lease: Any, *, claims: bool = True, report: Any = None) -> Any:
        """Claim the row, call the body, finish the row. ``report``: called before the body."""
        self.lease = lease or Unleased(self.message, self.use)
        mark = runs.set((*runs.get(), self))
        try:
            with self.row.claimed(lease) if claims and self.task.guard else NOTHING:
                # What it has reserved ends before its body reads anything, but after the claim: the
                # message waits on if the database is away.
                (self.message.over if lease is None else self.message.end_reserved)()
                self.row.begun = True
                if report is not None:
                    report()
                with self.task.conflict.body(self, lease):
                    result = self.task.call_body(self, *self.called)
                self.completed = True
            return result
        finally:
            runs.reset(mark)

    def call(self, body: Callable[[], Any]) -> Any:
        """Call the body. Raises `LeaseLost` if it was stopped because its lease is lost."""
        stops = self.task.on_loss == "stop" and isinstance(self.lease, Lease)
        return call_until_lost(self.lease, body) if stops else body()

    def _release(self, lease: Lease) -> bool:
        """Release the lease, and note how the run has ended. Returns False if it was lost before.

        If the store does not answer, what was done under the lease counts.
        """
        message, error = self.message, self.error
        held = lease.held or lease.detached
        ended = error is None or (isinstance(error, Exception) and not message.comes_back(error))
        if not (self.row.begun and ended) or isinstance(error, Skip):
            lease.cool(None)  # It has not begun, it goes on, or a later call replaces it.
        lease.end_block(failed=error is not None)
        try:
            if not lease.detached:
                return lease.release(self._note_of_end())
            self._note()  # The body has handed the lease on.
            return True
        except StoreUnavailable as outage:
            logger.warning("%s could not release its lock %s now: %s", message, lease.name, outage)
            return held

    def _outage(self, error: Exception) -> Any:
        """Do what ``on_outage`` says: the store does not answer, or the row's database, without
        which no call can run."""
        task, message = self.task, self.message
        if self.row.begun:
            raise error  # It is the body's.
        if task.on_outage == "run" and isinstance(error, StoreUnavailable):
            try:
                return self.perform(None, starts=False)
            except AWAY as away:
                return self._outage(away)
            except RowTaken:
                pass
        if task.on_outage != "raise" and message.queued:
            if isinstance(error, AWAY) and task.guard:
                logger.warning("%s could not claim its row %s now: %s", message, self.row, error)
            wait_for_store(message)
        raise error

    def _note_of_end(self) -> Note | None:
        message = self.message
        return message.attempts.note_of_end(self.error, keeps_results=message.keeps_results)

    def _note(self) -> None:
        """Write the note of the end, if there is one."""
        if (note := self._note_of_end()) is not None:
            self.task.locks.store.set_note(note)


# The runs around this code, the innermost last.
runs: ContextVar[tuple[Run, ...]] = ContextVar("tasklock_runs", default=())


# The pid of the main process that shuts down. Other workers may have been forked with the same.
_shared = mmap.mmap(-1, 8)


class _ShutsDown(Exception):
    """The worker of a run that waits shuts down."""


def _wait(pause: Pause) -> Grant | Refusal | None:
    """As `Pause.wait`, in slices. Raises `_ShutsDown`."""
    until, waiter = clock.now() + pause.seconds, pause.waiter
    while True:
        # 0 until then; and so is the parent of a container's first process.
        ending = int.from_bytes(_shared[:], "big")
        if ending and ending in (os.getpid(), os.getppid()):
            raise _ShutsDown
        left = max(0.0, until - clock.now())
        news = pause._replace(seconds=min(left, LOOK_SECONDS)).wait()
        ends = pause.watched or left <= LOOK_SECONDS or (waiter is not None and waiter.cut)
        if news is not None or ends:
            return news


@worker_shutting_down.connect
def _shut_down(**_: object) -> None:
    # Here, because only a worker is to import it.
    from .._compat.celery_worker import active_requests

    _shared[:] = os.getpid().to_bytes(8, "big")
    # If they do not end in time, that is no death of theirs.
    for request in active_requests():
        if hasattr(request, "take_back"):
            request.take_back()
