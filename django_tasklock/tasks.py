"""``@locked``: a lock and a guard for the functions of Django's tasks; on any Django."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from ._engine.aio.drive import drive
from ._engine.aio.in_turn import InTurn
from ._engine.aio.leaving import left_with
from ._engine.aio.verbs import left
from ._engine.binding import Binder
from ._engine.lease import Lease
from ._engine.names import NameTemplate
from ._engine.service import LockService
from ._engine.skipping import SkipReason, reason_of, skipped
from ._engine.steps import Steps, blocking, steps_of
from ._engine.use import Use, log_not_released
from ._values.arguments import check_options, checked_template
from ._values.lock_info import LockInfo
from ._values.owner import Owner
from ._values.signatures import is_generator, signature_of
from .conf import DEFAULT_ALIAS
from .exceptions import (
    InvalidLockConfig,
    LeaseLost,
    LockNotAcquired,
    StatusConflict,
    StoreUnavailable,
)
from .guards import StatusGuard

__all__ = ["locked"]

logger = logging.getLogger("django_tasklock")

Function = TypeVar("Function", bound=Callable[..., Any])


def locked(
    name: str | Callable[..., str],
    *,
    ttl: float | None = None,
    wait: float | None = 0,
    renew: bool = True,
    store: str = DEFAULT_ALIAS,
    on_conflict: Literal["skip", "raise"] = "skip",
    guard: StatusGuard | None = None,
) -> Callable[[Function], Function]:
    """Hold a lock for each run of a task: ``@task()`` over ``@locked("video:{video_id}")``.

    ``name``: a template that the arguments fill, or a callable that gets them and returns the name.
    ``ttl``: seconds that the lease lasts; None, the store's TTL. ``wait``: seconds to wait for the
    lock; 0 does not wait, None waits for ever. ``renew``: extend the lease while the task runs.
    ``store``: an alias of the setting. ``on_conflict``: with "skip" a run that finds the lock held
    returns ``{"status": "skipped", "reason": "already_processing", "lock": ..., "holder": ...}``,
    with the reason "cooling_down" if it stays taken after other code's work, and "held_by_operator"
    if ``locks.hold`` took it; with "raise" it raises `LockNotAcquired`. ``guard``: claims a row
    before the run and finishes it after; a run whose row cannot be claimed is skipped, with the
    reason "invalid_state".

    A function that has a keyword-only parameter ``lease`` gets the `Lease`. One that gets the
    task's context has its task id recorded as the owner's. ``async def`` may be decorated too.

    Raises `TypeError` or `ValueError` for a wrong argument, and `InvalidLockConfig` for a guard
    whose key is no argument of the function. A run raises what the function raises; `LeaseLost` if
    its lease was lost and nothing else shows that its result counts; `StatusConflict` if somebody
    else has changed the row; `StoreUnavailable` if the store does not answer before the function
    was called.
    """
    if not callable(name):
        checked_template(name)
    check_options(ttl, wait, renew, store)
    if on_conflict not in ("skip", "raise"):
        raise ValueError(f'on_conflict is "skip" or "raise", not {on_conflict!r}')

    def decorate(function: Function) -> Function:
        signature, takes_lease = _signature(function)
        bind = Binder(signature)
        fill = name if callable(name) else NameTemplate(name, signature).fill_from
        if guard is not None:
            _check_guard(guard, signature)
        task = f"{function.__module__}.{function.__qualname__}"

        def begin(args: Any, kwargs: Any) -> _Run:
            arguments = bind(args, kwargs)
            lock_name = fill(*args, **kwargs) if callable(name) else fill(arguments)
            run = _Run(store, task, lock_name, guard, arguments, on_conflict)
            run.use.template = f"{task}:{{lock_name}}" if callable(name) else name
            return run

        def acquire(run: _Run) -> Steps[Lease | LockInfo]:
            return steps_of(LockService(store).try_acquire)(
                run.name,
                ttl=ttl, wait=wait, renew=renew, task=task, task_id=run.task_id, use=run.use,
            )  # fmt: skip

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            # Not in a thread of its own: whatever names the lock or claims the row uses the ORM.
            run = await sync_to_async(begin)(args, kwargs)
            won = await drive(store, acquire(run), left(run.use))
            if isinstance(won, LockInfo):
                return run.refused(won)
            more = {"lease": won} if takes_lease else {}
            rows, leave = InTurn(), run.leave

            def leave_closed() -> None:
                rows.make_last(run.fail, won, GeneratorExit())
                run.leave()

            try:
                try:
                    if not await rows.make(run.claim, won):
                        return run.skipped("invalid_state", None)
                    result = await function(*args, **kwargs, **more)
                    await rows.make(run.finish, won)
                    return result
                except GeneratorExit:
                    raise
                except BaseException as error:
                    await rows.make(run.fail, won, error)
                    raise
            except GeneratorExit:
                # It cannot wait for the row. `left_with` makes the call in another thread.
                leave = leave_closed
                raise
            finally:
                try:
                    await left_with(store, sys.exc_info()[1], leave)
                except StoreUnavailable as error:
                    log_not_released("a task", run.name, error)

        def run_sync(*args: Any, **kwargs: Any) -> Any:
            run = begin(args, kwargs)
            won = blocking(acquire(run))
            if isinstance(won, LockInfo):
                return run.refused(won)
            more = {"lease": won} if takes_lease else {}
            try:
                if not run.claim(won):
                    return run.skipped("invalid_state", None)
                result = function(*args, **kwargs, **more)
                run.finish(won)
                return result
            except BaseException as error:
                run.fail(won, error)
                raise
            finally:
                run.leave()

        wrapper: Any = functools.wraps(function)(
            run_async if iscoroutinefunction(function) else run_sync
        )
        wrapper.__signature__ = signature
        return cast("Function", wrapper)

    return decorate


class _Run:
    """One run of a task: its lock, and the row that it claims."""

    def __init__(
        self,
        store: str,
        task: str,
        name: str,
        guard: StatusGuard | None,
        arguments: Mapping[str, Any],
        on_conflict: str,
    ) -> None:
        self.name = name
        self._store = store
        self._task = task
        self.use = Use(None)
        context = arguments.get("context")
        self.task_id: str | None = getattr(getattr(context, "task_result", None), "id", None)
        self._guard = guard
        self._pk = None if guard is None else guard.pk_of(arguments)
        self._on_conflict = on_conflict
        self._counts = False
        """whether the run has ended well"""
        self._may_have_row = False
        """whether the row was claimed, or its claim was interrupted"""

    def refused(self, holder: LockInfo) -> dict[str, Any]:
        """Return the marker, or raise `LockNotAcquired`."""
        if self._on_conflict == "raise":
            raise LockNotAcquired(self.name, holder)
        return self.skipped(reason_of(holder), holder.owner)

    def skipped(self, reason: SkipReason, holder: Owner | None) -> dict[str, Any]:
        """Return the marker of a skipped run."""
        return skipped(self._store, self.name, self._task, self.task_id, reason, holder)

    def claim(self, lease: Lease) -> bool:
        """Claim the row, if there is a guard. Returns False if it cannot be claimed."""
        if self._guard is None:
            return True
        self._may_have_row = True
        try:
            self._may_have_row = self._guard.claim(self._pk, self._fence(lease))
        except Exception:
            self._may_have_row = False
            raise
        return self._may_have_row

    def finish(self, lease: Lease) -> None:
        """Finish the row. Raises `LeaseLost` or `StatusConflict` if the result does not count."""
        fence, detached = self._fence(lease), lease._is_detached()
        if fence is None and not (detached and self._guard is None):
            # Nothing but the lease distinguishes this run from the next holder's.
            lease.assert_held()
        if self._guard is not None:
            try:
                self._guard.finish(self._pk, fence)
            except StatusConflict:
                if not detached:
                    lease.assert_held()
                raise
        self._counts = True

    def fail(self, lease: Lease, error: BaseException) -> None:
        """Give the row of a run that ended with ``error`` its status. Raises nothing."""
        guard = self._guard
        if guard is None or not self._may_have_row:
            return
        # What is no `Exception` interrupts the run from outside, as the end of the worker does.
        leave = guard.fail if isinstance(error, Exception) else guard.reopen
        fence = self._fence(lease)
        try:
            if fence is not None or lease.held:
                leave(self._pk, fence)
                return
            # Only the lock shows whether another run has the row.
            again = LockService(lease.store).acquire(self.name)
            if again is not None:
                try:
                    leave(self._pk, None)
                finally:
                    again.release()
        except Exception:
            # The next run can claim the row as it is. The task's own error is reported.
            logger.exception(
                "could not change the row %s of %s after an error", self._pk, guard.label
            )

    def leave(self) -> None:
        """Release the lease. Raises `LeaseLost` for a result that is in no row."""
        try:
            self.use.leave(failed=not self._counts)
        except LeaseLost:
            if self._guard is None:
                raise
        except StoreUnavailable as error:
            log_not_released("a task", self.name, error)

    def _fence(self, lease: Lease) -> int | None:
        return lease.fence if self._guard is not None and self._guard.fence_field else None


def _signature(function: Any) -> tuple[inspect.Signature, bool]:
    """Return the signature that callers see, and whether the function gets the lease as well."""
    if not inspect.isroutine(function):
        raise TypeError(f"@locked decorates a function, and @task() goes over it: {function!r}")
    if is_generator(function):
        raise TypeError(f"@locked cannot decorate the generator {function.__qualname__}")
    signature = signature_of(function)
    lease = signature.parameters.get("lease")
    if lease is None or lease.kind is not lease.KEYWORD_ONLY:
        return signature, False
    others = [p for p in signature.parameters.values() if p is not lease]
    return signature.replace(parameters=others), True


def _check_guard(guard: Any, signature: inspect.Signature) -> None:
    if not isinstance(guard, StatusGuard):
        raise InvalidLockConfig(f"guard is a StatusGuard, not {guard!r}")
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if guard.pk not in signature.parameters and not anything:
        raise InvalidLockConfig(f"the guard's key {guard.pk!r} is no argument of the task")
