"""``@locked``: a lock and a guard for the functions of Django's tasks; on any Django."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Literal, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from ._engine.aio.drive import drive
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
from .exceptions import InvalidLockConfig, LeaseLost, LockNotAcquired, StoreUnavailable
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
    if not isinstance(guard, StatusGuard | None):
        raise InvalidLockConfig(f"guard is a StatusGuard, not {guard!r}")

    def decorate(function: Function) -> Function:
        signature, takes_lease = _signature(function)
        bind = Binder(signature)
        fill = name if callable(name) else NameTemplate(name, signature).fill_from
        anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        if guard is not None and guard.pk not in signature.parameters and not anything:
            raise InvalidLockConfig(f"the guard's key {guard.pk!r} is no argument of the task")
        task = f"{function.__module__}.{function.__qualname__}"

        def begin(args: Any, kwargs: Any) -> _Run:
            arguments, use = bind(args, kwargs), Use(None)
            lock_name = fill(*args, **kwargs) if callable(name) else fill(arguments)
            use.template = f"{task}:{{lock_name}}" if callable(name) else name
            task_id = getattr(getattr(arguments.get("context"), "task_result", None), "id", None)
            taking = steps_of(LockService(store).try_acquire)(
                lock_name,
                ttl=ttl, wait=wait, renew=renew, task=task, task_id=task_id, use=use,
            )  # fmt: skip
            skip = partial(skipped, store, lock_name, task, task_id)
            pk = None if guard is None else guard.pk_of(arguments)
            return _Run(lock_name, use, taking, skip, on_conflict, guard, pk)

        def call(lease: Lease, args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs, **({"lease": lease} if takes_lease else {}))

        def run_sync(*args: Any, **kwargs: Any) -> Any:
            run = begin(args, kwargs)
            with run.working(blocking(run.taking)) as got:
                return call(got, args, kwargs) if isinstance(got, Lease) else got

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            # Not in a thread of its own: whatever names the lock or claims the row uses the ORM.
            run = await sync_to_async(begin)(args, kwargs)
            # That thread must not wait: the holder may need it to come to its end.
            working = run.working(await drive(store, run.taking, left(run.use)))
            end = sync_to_async(working.__exit__)
            try:
                got = await sync_to_async(working.__enter__)()
                result = await call(got, args, kwargs) if isinstance(got, Lease) else got
                await end(None, None, None)
                return result
            except GeneratorExit:
                raise  # It was closed, and cannot wait.
            except BaseException as error:
                # A cancelled call may not have been made, or be under way in that thread.
                await end(type(error), error, error.__traceback__)
                raise

        run_it = run_async if iscoroutinefunction(function) else run_sync
        wrapper: Any = wraps(function)(run_it)
        wrapper.__signature__ = signature
        return cast("Function", wrapper)

    return decorate


@dataclass
class _Run:
    """One run of a task: its lock, and the row ``pk`` of the ``guard``, if there is one."""

    name: str
    use: Use
    # Acquires the lock.
    taking: Steps[Lease | LockInfo]
    # Makes the marker of a skipped run, of the reason and of whoever has the lock.
    skip: Callable[[SkipReason, Owner | None], dict[str, Any]]
    on_conflict: str
    guard: StatusGuard | None
    pk: Any

    @contextmanager
    def working(self, won: Lease | LockInfo) -> Iterator[Lease | dict[str, Any]]:
        """A block under the lease: it claims the row first, and finishes it; then it releases.

        Yields the marker of a skipped run, and changes no row, if another has the lock or the row
        cannot be claimed. Raises `LockNotAcquired`; `LeaseLost` or `StatusConflict` if the result
        does not count.
        """
        if isinstance(won, LockInfo):
            if self.on_conflict == "raise":
                raise LockNotAcquired(self.name, won)
            yield self.skip(reason_of(won), won.owner)
            return
        guard, claimed = self.guard, False
        fence = won.fence if guard is not None and guard.fence_field else None
        try:
            claimed = guard is None or guard.claim(self.pk, fence)
            yield won if claimed else self.skip("invalid_state", None)
            if claimed and guard is not None:
                self._finish(guard, won, fence)
        except GeneratorExit:
            # The coroutine was closed, and cannot wait. The row is left to the next holder.
            self.use.drop()
            raise
        except BaseException as error:
            # A claim that was interrupted may have been made all the same.
            if guard is not None and (claimed or not isinstance(error, Exception)):
                self._leave_row(guard, won, fence, error)
            self.use.leave(failed=True)
            raise
        try:
            self.use.leave(failed=not claimed)
        except LeaseLost:
            if guard is None:  # Otherwise the result is in the row.
                raise
        except StoreUnavailable as error:
            log_not_released("a task", self.name, error)

    def _finish(self, guard: StatusGuard, lease: Lease, fence: int | None) -> None:
        if fence is None:
            # Nothing but the lease distinguishes this run from the next holder's.
            lease.assert_held()
        try:
            guard.finish(self.pk, fence)
        except Exception:
            if not lease._is_detached():
                lease.assert_held()  # If it is lost, that is why.
            raise

    def _leave_row(self, guard: StatusGuard, lease: Lease, fence: Any, error: object) -> None:
        """Give the row of a run that ended with ``error`` its status. Raises nothing."""
        if fence is None and not lease.held:
            return  # It may be another run's. The next one can claim it as it is.
        # What is no `Exception` interrupts the run from outside, as the end of the worker does.
        leave = guard.fail if isinstance(error, Exception) else guard.reopen
        try:
            leave(self.pk, fence)
        except Exception:
            # The next run can claim the row as it is. The task's own error is reported.
            logger.exception(
                "could not change the row %s of %s after an error", self.pk, guard.label
            )


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
