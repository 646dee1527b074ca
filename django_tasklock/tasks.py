"""``@locked``: a lock and a guard for the functions of Django's tasks; on any Django."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from ._engine.aio.drive import drive
from ._engine.aio.verbs import left
from ._engine.binding import Binder
from ._engine.context import lock
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
            context = arguments.get("context")
            task_id = getattr(getattr(context, "task_result", None), "id", None)
            pk = None if guard is None else guard.pk_of(arguments)
            run = _Run(store, task, task_id, lock_name, guard, pk, Use(None))
            run.use.template = f"{task}:{{lock_name}}" if callable(name) else name
            return run

        def acquire(run: _Run) -> Steps[Lease | LockInfo]:
            return steps_of(LockService(store).try_acquire)(
                run.name,
                ttl=ttl, wait=wait, renew=renew, task=task, task_id=run.task_id, use=run.use,
            )  # fmt: skip

        def refused(run: _Run, holder: LockInfo) -> dict[str, Any]:
            if on_conflict == "raise":
                raise LockNotAcquired(run.name, holder)
            return run.skipped(reason_of(holder), holder.owner)

        def run_sync(*args: Any, **kwargs: Any) -> Any:
            run = begin(args, kwargs)
            won = blocking(acquire(run))
            if isinstance(won, LockInfo):
                return refused(run, won)
            more = {"lease": won} if takes_lease else {}
            with run.working(won) as claimed:
                if claimed:
                    return function(*args, **kwargs, **more)
                return run.skipped("invalid_state", None)

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            # Not in a thread of its own: whatever names the lock or claims the row uses the ORM.
            run = await sync_to_async(begin)(args, kwargs)
            # That thread must not wait: the holder may need it to come to its end.
            won = await drive(store, acquire(run), left(run.use))
            if isinstance(won, LockInfo):
                return refused(run, won)
            more = {"lease": won} if takes_lease else {}
            working = run.working(won)
            end = sync_to_async(working.__exit__)
            try:
                if await sync_to_async(working.__enter__)():
                    result = await function(*args, **kwargs, **more)
                else:
                    result = run.skipped("invalid_state", None)
                await end(None, None, None)
                return result
            except GeneratorExit:
                raise  # It was closed, and cannot wait.
            except BaseException as error:
                # A cancelled call may not have been made, or be under way in that thread.
                await end(type(error), error, error.__traceback__)
                raise

        run_it = run_async if iscoroutinefunction(function) else run_sync
        wrapper: Any = functools.wraps(function)(run_it)
        wrapper.__signature__ = signature
        return cast("Function", wrapper)

    return decorate


@dataclass
class _Run:
    """One run of a task: its lock, and the row ``pk`` of the ``guard``, if there is one."""

    store: str
    task: str
    task_id: str | None
    name: str
    guard: StatusGuard | None
    pk: Any
    use: Use

    def skipped(self, reason: SkipReason, holder: Owner | None) -> dict[str, Any]:
        """Return the marker of a skipped run."""
        return skipped(self.store, self.name, self.task, self.task_id, reason, holder)

    @contextmanager
    def working(self, lease: Lease) -> Iterator[bool]:
        """A block under the lease: it claims the row first, and finishes it; then it releases.

        Yields False, and changes no row, if the row cannot be claimed. Raises `LeaseLost` or
        `StatusConflict` if the result does not count.
        """
        guard = self.guard
        fence = lease.fence if guard is not None and guard.fence_field else None
        claimed = counts = False
        try:
            claimed = guard is None or guard.claim(self.pk, fence)
            yield claimed
            if claimed and guard is not None:
                self._finish(guard, lease, fence)
            counts = claimed
        except GeneratorExit:
            # The coroutine was closed, and cannot wait. The row is left to the next holder.
            self.use.drop()
            raise
        except BaseException as error:
            # A claim that was interrupted may have been made all the same.
            if guard is not None and (claimed or not isinstance(error, Exception)):
                self._leave_row(guard, lease, fence, error)
            raise
        finally:
            if self.use.lease is not None:
                self._release(failed=not counts)

    def _finish(self, guard: StatusGuard, lease: Lease, fence: int | None) -> None:
        if fence is None:
            # Nothing but the lease distinguishes this run from the next holder's.
            lease.assert_held()
        try:
            guard.finish(self.pk, fence)
        except StatusConflict:
            if not lease._is_detached():
                lease.assert_held()
            raise

    def _leave_row(
        self, guard: StatusGuard, lease: Lease, fence: int | None, error: BaseException
    ) -> None:
        """Give the row of a run that ended with ``error`` its status. Raises nothing."""
        # What is no `Exception` interrupts the run from outside, as the end of the worker does.
        leave = guard.fail if isinstance(error, Exception) else guard.reopen
        # Without a fence only the lock shows whether another run has the row.
        is_ours = fence is not None or lease.held
        try:
            with nullcontext() if is_ours else lock(self.name, store=self.store):
                leave(self.pk, fence)
        except LockNotAcquired:
            pass
        except Exception:
            # The next run can claim the row as it is. The task's own error is reported.
            logger.exception(
                "could not change the row %s of %s after an error", self.pk, guard.label
            )

    def _release(self, *, failed: bool) -> None:
        """Release the lease. Raises `LeaseLost` for a result that is in no row."""
        try:
            self.use.leave(failed=failed)
        except LeaseLost:
            if self.guard is None:
                raise
        except StoreUnavailable as error:
            log_not_released("a task", self.name, error)


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
