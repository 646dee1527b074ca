"""The main process's side of a run: it knows the token, and sees its pool children die.

A child killed by SIGKILL or by the kernel for want of memory runs no ``finally``. The main
process drew the lease's token and knows the child's pid: when that very process is dead, and
only then, it clears the lease. A time limit or a revoke alone proves nothing, the child may
still be running. On a store without takeover, for work that leaves subprocesses behind, the lease
is left to its end: nobody renews it any more, and the job's message comes back by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated, TimeLimitExceeded
from celery.concurrency.prefork import TaskPool
from celery.exceptions import WorkerLostError
from celery.worker.request import Request
from django.db import connections

from ..exceptions import StoreUnavailable
from ..lease import new_token
from .body import Body
from .children import Watch, children
from .followup import follow_up_key
from .requeue import HEADER
from .unique import Reservation, unique_for

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = ["LockedRequest"]

logger = logging.getLogger("django_tasklock")

PATIENCE = 1.0
"""seconds for which the worker's event loop waits for a lease to be cleared, at most"""

NOT_FROM_THE_CHILD = (Terminated, TimeLimitExceeded, WorkerLostError)
"""failures that the main process reports while, or before, the child dies"""


class LockedRequest(Request):
    """A request that clears the lease of its run when the pool child is gone."""

    # What the class of Celery has, and its stubs have not.
    _request_dict: dict[str, Any]
    _task: LockedTask
    _args: list[Any]
    _kwargs: dict[str, Any]
    _already_cancelled: bool
    _already_revoked: bool

    _watch: Watch | None = None
    _pool: Any = None
    _ended: bool | None = None
    """After a hard time limit: whether that is the end of the message."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._token = new_token()
        ours = self._request_dict.get(HEADER)
        self._request_dict[HEADER] = {
            **(ours if isinstance(ours, dict) else {}),
            "token": self._token,
            "content": self.content_type,
        }

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Celery makes a subclass for each task, whose versions of these two call no super().
        super().__init_subclass__(**kwargs)
        execute, succeed = cls.execute_using_pool, cls.on_success

        def execute_using_pool(self: LockedRequest, pool: Any, **kwargs: Any) -> Any:
            self._pool = pool
            return execute(self, pool, **kwargs)

        def on_success(self: LockedRequest, failed__retval__runtime: Any, **kwargs: Any) -> Any:
            if not failed__retval__runtime[0]:
                self._unwatch()
            return succeed(self, failed__retval__runtime, **kwargs)

        cls.execute_using_pool = execute_using_pool  # type: ignore[assignment,method-assign]
        cls.on_success = on_success  # type: ignore[assignment,method-assign]

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        # Other pools run in this process, and give a greenlet's id for a pid.
        if isinstance(self._pool, TaskPool):
            self._watch = children.watch(pid, self._child_died)
        super().on_accepted(pid, time_accepted)

    def revoked(self) -> bool:
        gone = super().revoked()
        if gone and (self._task.unique_while is not None or self._task.on_conflict == "coalesce"):
            self._in_thread(self._give_up)
        return gone

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError):
            self._clear()
        elif not isinstance(error, (*NOT_FROM_THE_CHILD, SystemExit, KeyboardInterrupt)):
            self._unwatch()
        return super().on_failure(exc_info, *args, **kwargs)

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        task: Any = self._task
        acked = getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)
        if not soft:
            self._ended = bool(acked or not task.acks_late)

    def _child_died(self) -> None:
        self._clear()
        # The pool looks for the dead every five seconds, or when the pipe of one was closed,
        # which is before it is really dead.
        pool = getattr(self._pool, "_pool", None)
        if pool is not None and children.in_loop():
            with suppress(Exception):
                pool.maintain_pool()

    def _clear(self) -> None:
        self._unwatch()
        self._in_thread(self._clear_lease)

    def _in_thread(self, call: Callable[[], None]) -> None:
        # So that a store that hangs does not hold up the worker's event loop.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(PATIENCE)

    def _reserve_again(self, name: str) -> None:
        """Before the lease of a dead child is cleared: does its message wait in the queue again?"""
        reservation = Reservation(self._task, name, self.id)
        if not self._comes_back():
            reservation.give_up()
            return
        holder = self._task.locks.get(name)
        # What had been released had come to its end.
        if holder is not None and holder.token == self._token:
            reservation.take(unique_for(self._task, self._request_dict), running=True)

    def _comes_back(self) -> bool:
        task = self._task
        if self._already_revoked or not task.acks_late:
            return False
        if self._ended is not None:
            return not self._ended
        return bool(task.reject_on_worker_lost or self._already_cancelled)

    def _give_up(self) -> None:
        # What this message had reserved: its place in the queue, or that of the follow-up.
        task = self._task
        with suppress(StoreUnavailable, TypeError, ValueError):
            name = task.lock_name_of(self._args, self._kwargs)
            if task.unique_while is not None:
                Reservation(task, name, self.id).give_up()
            if task.on_conflict == "coalesce":
                task.locks.store.unreserve(follow_up_key(task, name), self.id)

    def _refuse_row(self, name: str) -> None:
        # The task has failed for good. Its body could not say so in the row: it was killed, or
        # told to exit as for a shutdown, after which it would run again.
        task, left = self._task, None
        body = Body(task, name, self._args, self._kwargs, survives=False)
        if not task.locks.store.takeover:
            left = task.locks.get(name)
            if left is not None and left.token == self._token and (left.ttl or 0) > PATIENCE:
                # The lease that it has left behind keeps everybody else out for a while.
                body.refuse(left.fence)
                return
        lease = task.locks.acquire(name, wait=2 * PATIENCE if left else 0)
        if lease is not None:
            try:
                body.refuse(lease.fence)
            finally:
                lease.release()

    def _clear_lease(self) -> None:
        task = self._task
        try:
            name = task.lock_name_of(self._args, self._kwargs)
        except (TypeError, ValueError):
            return  # There is no such name: the task failed over it, and holds nothing.
        try:
            if task.unique_while is not None:
                self._reserve_again(name)
            if task.on_conflict == "coalesce" and not self._comes_back():
                task.locks.store.unreserve(follow_up_key(task, name), self.id)
            # What the child has started may live on, and be what the lock is for.
            if task.locks.store.takeover:
                task.locks.clear(name, self._token, by="the worker, whose pool child is dead")
            if task.guard is not None and (self._ended or self._already_revoked):
                self._refuse_row(name)
        except StoreUnavailable as error:
            logger.warning("the lock of %s[%s] ends by itself: %s", self.name, self.id, error)
        except Exception:
            logger.exception("the row of %s[%s] could not be left", self.name, self.id)
        finally:
            # The main process forks: it keeps no connection to the database.
            connections.close_all()
