"""The main process's side of a run: it clears the lease of a pool child that died.

A child that is killed by SIGKILL or by the kernel's out-of-memory killer runs no ``finally``. The
main process made the lease's token and knows the child's pid. It clears the lease when that very
process is dead, and only then: after a time limit or a revoke the child may still be running.

A store without takeover is for work that leaves subprocesses behind. There the lease is not
cleared: it ends with its ttl, since nothing renews it, and the job's message is delivered by then.
"""

from __future__ import annotations

import os
import threading
from _thread import start_new_thread
from collections.abc import Callable, Set
from contextlib import suppress
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.app.task import Context
from celery.exceptions import Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.signals import worker_process_shutdown
from django.db import connections
from django.utils.functional import cached_property
from kombu.serialization import registry  # type: ignore[attr-defined]

from .._compat import celery_worker as compat
from .._engine.acquiring import BY_WORKER
from .._engine.jobs import finish_jobs
from .._values.arguments import permit_names
from .._values.lock_info import LockInfo
from .._values.tokens import new_token
from .._values.words import logger
from ..exceptions import StoreUnavailable, TooManyAttempts
from .call import HEADER, LEASE, RESERVED, SERIALIZER
from .handing import end_detached
from .message import Message, tell
from .note import CameBack
from .options import TaskOptions
from .row import Row

# What says that the child of a run is dead, or is being ended.
DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded, SystemExit, KeyboardInterrupt)
# How long the worker's event loop waits for a lease to be cleared.
CLEAR_WAIT_SECONDS = 1.0


class Children:
    """The pool children of a worker, and what is called when one of them dies.

    The kernel reports the death by a pidfd, which the worker's event loop reads. A child works on
    one message at a time, so it is enough to know the last one that it has accepted.

    In a worker without an event loop, and without pidfds (before Linux 5.3, or on other systems),
    nothing is called.
    """

    def __init__(self) -> None:
        self._consumer: Any = None
        self._loop: Any = None
        # Of each child, by its pid: its pidfd, and what is called at its death.
        self._watched: dict[int, tuple[int, Callable[[], object]]] = {}

    def use(self, consumer: Any) -> None:
        """Watch the children of the worker with this consumer. Called again when it has connected
        to the broker again: its loop has forgotten all files then."""
        self._consumer, self._loop = consumer, compat.loop_of_children(consumer)
        for pid in self._watched:
            self._read(pid)

    def accepted(self, pid: int, died: Callable[[], object]) -> None:
        """The child ``pid`` works on another message: only ``died`` is called at its death."""
        if self._loop is None:
            return
        try:
            file = self._watched[pid][0] if pid in self._watched else os.pidfd_open(pid)
        except (OSError, AttributeError):
            return  # It is dead, and the pool knows; or the system has no pidfds.
        self._watched[pid] = file, died
        self._read(pid)

    def _read(self, pid: int) -> None:
        file, _ = self._watched[pid]
        if self._loop is not None and file not in self._loop.readers:
            self._loop.add_reader(file, self._is_dead, pid)

    def _is_dead(self, pid: int) -> None:
        file, died = self._watched.pop(pid)
        # Closing it is not enough: processes that were forked since have it open as well.
        self._loop.remove(file)
        os.close(file)
        died()
        compat.replace_dead_children(self._consumer)


children = Children()


class LockedRequest(compat.WorkerRequest):
    """A request that decides what the end of its run means, for its message, lock and row."""

    _task: TaskOptions

    # Whether the end of the run was seen.
    _seen = False
    # The error of a message of which too many runs have died by then.
    _given_up: ExceptionInfo | None = None
    # Whether it was revoked, and its child is being killed.
    _terminated = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ours = self._request_dict.get(HEADER)
        # A run is not told how its message was written, and may send it again.
        told = {"token": new_token(), SERIALIZER: registry.type_to_name.get(self.content_type)}
        self._request_dict[HEADER] = {**(ours if isinstance(ours, dict) else {}), **told}

    @cached_property
    def ours(self) -> Message:
        """The message as its run sees it."""
        return Message(self._task, Context(self._request_dict, called_directly=False), (), {})

    def gone(self, error: BaseException) -> bool:
        """Return whether the message is over after this error: nobody delivers or sends it again.

        Only this process can tell: it knows a child's death from its worker's end.
        """
        task: Any = self._task
        if isinstance(error, Retry | CameBack | Reject):
            return isinstance(error, Reject) and not getattr(error, "requeue", False)
        if self._terminated or self._given_up or not isinstance(error, DEATHS):
            return True
        if isinstance(error, TimeLimitExceeded):
            acked = getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)
            return bool(acked) or not task.acks_late
        again = task.acks_late and task.reject_on_worker_lost
        if isinstance(error, Terminated) or not getattr(task, "retry_on_worker_lost", False):
            return not again
        # Celery sends a retry, and when there are none left, the message does not come back.
        most, retries = task.max_retries, self.ours.request.retries or 0
        return most is not None and retries >= most

    @property
    def request_dict(self) -> dict[str, Any]:
        """The headers, as a child gets them. It reads the arguments from the body: if it did so
        from here, it would do so before it accepts the message, and its death would be unseen."""
        given = self._request_dict
        return {key: given[key] for key in given if key not in ("args", "kwargs")}

    # ------------------------------------------------------------------------ what Celery calls

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        def died() -> None:  # Perhaps after the end of the run.
            at_work = self._terminated or self in compat.active_requests()
            self._see(WorkerLostError(), at_work=at_work)

        children.accepted(pid, died)
        super().on_accepted(pid, time_accepted)

    def revoked(self) -> bool:
        if gone := super().revoked():
            self._in_thread(self._end_reserved)
        return gone

    def terminate(self, pool: Any, signal: Any = None) -> None:
        # Before the signal, on which the body ends as it does at a shutdown, and reopens its row.
        self._terminated = True
        self._in_thread(self._fail_row)
        super().terminate(pool, signal)

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        self.take_back()  # The worker ends, or has lost the broker.
        super().cancel(*args, **kwargs)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft:
            self._see(TimeLimitExceeded(timeout))
        if not self._given_up:
            super().on_timeout(soft, timeout)
        elif not self.acknowledged:  # A pool of child processes has called `on_failure` before.
            super().on_failure(self._given_up)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = exc_info.exception  # A retry's own ``exc`` is what it retries for.
        self._see(error if isinstance(error, Retry) else getattr(error, "exc", error))
        if self._given_up and not self.acknowledged:
            return super().on_failure(self._given_up)
        return super().on_failure(exc_info, *args, **kwargs)

    # ------------------------------------------------------------------------ what it means

    def _see(self, error: BaseException, *, at_work: bool = True) -> None:
        """Do what the end of the run with this error means, once; at the death of the child only if
        the run was ``at_work``. The pool signals a child that has met its hard time limit after
        this."""
        first = at_work and not self._seen
        self._seen |= first
        ours = self._request_dict[HEADER]
        has_more = self._task.conflict.has_follow_up or RESERVED in ours or LEASE in ours
        if isinstance(error, DEATHS) or (first and has_more):
            self._in_thread(partial(self._ended, error, first=first))

    def _ended(self, error: BaseException, *, first: bool) -> None:
        if first:
            self._weigh(error)
        locks, lost = self._task.locks, isinstance(error, WorkerLostError)
        # Without takeover: subprocesses of the child may go on with the work under this lock.
        leases = self._leases() if lost and locks.store.takeover else ()
        for lease in filter(None, leases):
            locks.clear(lease.name, lease.token, by=BY_WORKER)

    def _weigh(self, error: BaseException) -> None:
        attempts = self.ours.attempts
        if isinstance(error, DEATHS) and attempts.counts and not self.gone(error):
            if compat.is_shutting_down() or self._already_cancelled:
                attempts.take_back()
            elif (deaths := attempts.died()) >= self._task.lock_max_attempts:
                try:
                    raise TooManyAttempts(self.name, self.id, deaths)
                except TooManyAttempts:
                    self._given_up = ExceptionInfo()
        if self.gone(error):
            if isinstance(error, DEATHS):
                # At a time limit a greenlet has left its lock, and its row is open again.
                self._fail_row(open_too=isinstance(error, TimeLimitExceeded))
            self._end_reserved()
        if self._given_up:
            tell(self.ours, "given_up", "too_many_attempts")

    def take_back(self) -> None:
        """Take back the start of the run, in a moment."""
        self._in_thread(self.ours.attempts.take_back, waits=False)

    def _in_thread(self, call: Callable[[], None], *, waits: bool = True) -> None:
        def tried() -> None:
            try:
                call()
            except Exception as error:
                logger.warning(
                    "could not clean up after %s[%s], whose lock ends with its ttl: %s", self.name,
                    self.id, error, exc_info=not isinstance(error, StoreUnavailable),
                )  # fmt: skip
            finally:
                # The main process forks, so it must not keep a connection to the database.
                connections.close_all()

        # A store that does not answer must not block the worker's event loop.
        if waits:
            thread = threading.Thread(target=tried, daemon=True)
            thread.start()
            thread.join(CLEAR_WAIT_SECONDS)
        else:  # Signal handlers run in gevent's hub, where even `Thread.start` must not wait.
            start_new_thread(tried, ())

    def _leases(self) -> list[LockInfo | None]:
        """As `_lease`: those of the permits of its limits, and at last that of its lock."""
        ours, handle = self.ours, self.ours.handle
        tokens = {ours.attempts.token, handle and handle.token}
        try:
            permits = [self._lease(name, limit.n, {token}) for limit, name, token in ours.permits]
            return [*permits, self._lease(ours.name, ours.named.slots, tokens)]
        except (TypeError, ValueError):
            return [None]  # The arguments give no valid name, so the run has never held a lock.

    def _lease(self, name: str, slots: int, tokens: Set[str | None]) -> LockInfo | None:
        """A lease with one of these tokens that the child holds for this run, if there is one. A
        pool without children gives our own pid for theirs."""
        pid: Any = self.worker_pid
        if pid is None or pid == os.getpid():  # It has not begun; or there are no children.
            return None

        def is_childs(holder: LockInfo) -> bool:
            # Whoever adopts a lease that was handed on has the same token, and another pid.
            is_ours = holder.token in tokens and holder.owner.pid == pid
            return is_ours and not (holder.cooling or holder.detached)

        names = [name] if slots == 1 else permit_names(name, slots)
        return self._task.locks.store.find_lease(names, is_childs)

    def _fail_row(self, *, open_too: bool = False) -> None:
        """Mark the guard's row as failed: the body cannot. Its mark says that it is the message's,
        or a lease keeps others out: the child's; or one of our own, of a message that is given up
        and where the row may be ``open_too``."""
        guard = self._task.guard
        if guard is None:
            return
        try:
            row = Row(self.ours)
            if guard.fence_field and guard.fail(row.pk, row.mark):
                return
            if (lease := self._leases()[-1]) is not None:
                guard.fail(row.pk, lease.fence)
            elif (self._given_up or open_too) and (own := self._task.locks.acquire(self.ours.name)):
                with own:
                    row.refuse(own.fence)
        except Exception:
            logger.exception("the row of %s[%s] could not be marked as failed", self.name, self.id)

    def _end_reserved(self) -> None:
        """End what a message has reserved that will not run, or not again."""
        with suppress(TypeError, ValueError):
            self.ours.over()
        if self.ours.handle is not None:
            end_detached(self._task, str(self.ours.handle))


def combined(given: type) -> type[LockedRequest]:
    """Return a class of requests that are ours first, and then the task's own, ``given``."""
    if issubclass(given, LockedRequest):
        return given
    return type(given.__name__, (LockedRequest, given), {"__module__": given.__module__})


@worker_process_shutdown.connect
def _write_last_events(**_: object) -> None:
    # A child of a prefork pool ends without the handlers of `atexit`.
    finish_jobs()
