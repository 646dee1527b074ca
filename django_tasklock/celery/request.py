"""The main process's side of a run: it clears the lease of a pool child that died.

A child that is killed by SIGKILL or by the kernel's out-of-memory killer runs no ``finally``. The
main process made the lease's token and knows the child's pid. It clears the lease when that very
process is dead, and only then: after a time limit or a revoke the child may still be running.

A store without takeover is for work that leaves subprocesses behind. There the lease is not
cleared: it ends with its ttl, since nothing renews it, and the job's message is delivered by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded
from celery.exceptions import WorkerLostError
from celery.worker.request import Request
from django.db import connections

from .._compat.celery_worker import WorkerRequest
from .._engine.causes import BY_WORKER
from .._engine.clear_many import get_seen
from .._values.keyed import Keyed
from .._values.owner_record import recorded
from .._values.tokens import new_token
from ..exceptions import InvalidLockConfig, StoreUnavailable
from .base import TaskBase
from .body import Body
from .children import Watch, children
from .debounce import drop
from .ending import may_reserve
from .followup import STARTED, follow_up_key
from .handing import clear_adopted, end_detached, handle_of
from .headers import HEADER, MOMENT
from .locked_run import beside_name
from .stored_result import acked_at_time_limit
from .unique import Reservation, unique_for

__all__ = ["LockedRequest", "combined"]

logger = logging.getLogger("django_tasklock")

CLEAR_WAIT_SECONDS = 1.0
"""how long the worker's event loop waits for a lease to be cleared"""

NOT_FROM_THE_CHILD = (Terminated, TimeLimitExceeded, WorkerLostError)
"""failures that the main process reports, maybe before the child is dead"""


class LockedRequest(WorkerRequest):
    """A request that clears the lease of its run when the pool child is dead."""

    _task: TaskBase

    _watch: Watch | None = None
    _ended: bool | None = None
    """after a hard time limit: whether the message is acknowledged and does not come back"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._token = new_token()
        ours = self._request_dict.get(HEADER)
        self._handle = handle_of(ours)
        """of the lease that the run adopts, if it is not over by then"""
        self._tokens = {self._token, self._handle.token if self._handle else None}
        self._request_dict[HEADER] = {
            **(ours if isinstance(ours, dict) else {}),
            "token": self._token,
            "content": self.content_type,
        }

    def succeeded(self) -> None:
        self._unwatch()

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        if self.runs_in_child():
            self._watch = children.watch(pid, self._child_died)
        super().on_accepted(pid, time_accepted)

    def revoked(self) -> bool:
        gone = super().revoked()
        if gone:
            task = self._task
            if self._handle or may_reserve(task) or task.debounce is not None:
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
        if not soft:
            self._ended = acked_at_time_limit(self._task)

    def _child_died(self) -> None:
        self._clear()
        if children.in_loop():
            self.replace_dead_children()

    def _clear(self) -> None:
        self._unwatch()
        self._in_thread(self._clear_lease)

    def _in_thread(self, call: Callable[[], None]) -> None:
        # A store that does not answer must not block the worker's event loop.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(CLEAR_WAIT_SECONDS)

    def _reserve_again(self, name: str, held: list[str]) -> None:
        """Reserve for the message of a dead child if it is delivered again, or end its reservation.

        ``held``: the locks one of which the run may hold. Called before the lease is cleared.
        """
        reservation = Reservation(self._task, name, self.id)
        if not self._comes_back():
            reservation.give_up()
            return
        holders = map(self._task.locks.get, held)
        # A run that released its lock had ended.
        if any(
            holder is not None and holder.token in self._tokens and not holder.cooling
            for holder in holders
        ):
            reservation.take(unique_for(self._task, self._request_dict), running=True)

    def _comes_back(self) -> bool:
        task = self._task
        if self._already_revoked or not task.acks_late:
            return False
        if self._ended is not None:
            return not self._ended
        return bool(task.reject_on_worker_lost or self._already_cancelled)

    def _give_up(self) -> None:
        # End what a revoked message has reserved.
        task = self._task
        if self._handle is not None:
            with suppress(StoreUnavailable, InvalidLockConfig):
                end_detached(task, str(self._handle))
        with suppress(StoreUnavailable, TypeError, ValueError):
            name = task.lock_name_of(self._args, self._kwargs)
            if task.unique_while is not None:
                Reservation(task, name, self.id).give_up()
            if task.on_conflict == "coalesce":
                task.locks.store.unreserve(follow_up_key(task, name), self.id)
            if task.debounce is not None:
                drop(task, name, self._request_dict[HEADER].get(MOMENT))

    def _fail_row(self, name: str) -> None:
        # The task has failed and will not run again, but its body could not mark the row: it was
        # killed, or it got the signal of a shutdown, after which a task runs again.
        task, holder = self._task, None
        body = Body(task, name, self._args, self._kwargs, survives=False)
        if not task.locks.store.takeover:
            holder = task.locks.get(name)
            if (
                holder is not None
                and holder.token in self._tokens
                and (holder.ttl or 0) > CLEAR_WAIT_SECONDS
            ):
                # The dead child's lease keeps all others out for long enough.
                body.refuse(holder.fence)
                return
        lease = task.locks.acquire(name, wait=2 * CLEAR_WAIT_SECONDS if holder else 0)
        if lease is not None:
            try:
                body.refuse(lease.fence)
            finally:
                lease.release()

    def _held_by_child(self, name: str) -> str:
        """The lock with the key under which the child has it: this process has no tenant."""
        store = self._task.locks.store
        if not isinstance(store.keyed(name), Keyed):
            return name
        (holder,) = get_seen(store, [(name, lambda info: info.token in self._tokens)])
        return name if holder is None else holder.name

    def _stays(self, name: str) -> bool:
        """Whether the lock stays taken, with the child's token: it cools, because the child died
        after its release, or the child has handed its lease on."""
        holder = self._task.locks.get(name)
        if holder is None or holder.token != self._token:
            return False
        return holder.cooling or holder.detached or holder.owner.task_id != recorded(self.id)

    def _clear_lease(self) -> None:
        task = self._task
        try:
            name = task.lock_name_of(self._args, self._kwargs)
            held = task.locks_of(self._args, self._kwargs)
        except (TypeError, ValueError):
            return  # The arguments give no valid name, so the run has never held a lock.
        try:
            held = [self._held_by_child(each) for each in held]
            if task.unique_while is not None:
                self._reserve_again(name, held)
            if task.on_conflict == "coalesce" and not self._comes_back():
                # If another run has started since, the follow-up runs once too often.
                for text in (self.id, STARTED):
                    task.locks.store.unreserve(follow_up_key(task, name), text)
            # Without takeover: subprocesses of the child may go on with the work under this lock.
            if task.locks.store.takeover:
                beside = [beside_name(self.id)] if task.on_conflict == "run" else []
                beside = [self._held_by_child(each) for each in beside]
                for each in (*held, *beside):
                    if not self._stays(each):
                        task.locks.clear(each, self._token, by=BY_WORKER)
                if self._handle is not None:
                    clear_adopted(task, self._handle)
            if task.guard is not None and (self._ended or self._already_revoked):
                self._fail_row(name)
        except StoreUnavailable as error:
            logger.warning(
                "could not clear the lock of %s[%s], which ends with its ttl: %s",
                self.name,
                self.id,
                error,
            )
        except Exception:
            logger.exception("the row of %s[%s] could not be marked as failed", self.name, self.id)
        finally:
            # The main process forks, so it must not keep a connection to the database.
            connections.close_all()


def combined(task: TaskBase, given: Any) -> type[LockedRequest]:
    """Return a class of requests that are ours first, and then the task's own, ``given``.

    Raises `InvalidLockConfig` if ``given`` is no subclass of Celery's request.
    """
    if not (isinstance(given, type) and issubclass(given, Request)):
        raise InvalidLockConfig(
            f"task {task.name}: Request is a subclass of celery.worker.request.Request, or the "
            f'name of one, such as "shop.requests:OwnRequest", not {given!r}'
        )
    if issubclass(given, LockedRequest):
        return given
    return type(given.__name__, (LockedRequest, given), {"__module__": given.__module__})
