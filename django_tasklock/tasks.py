"""``@locked``: a lock and a guard for the functions of Django's tasks; on any Django."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar, cast

from asgiref.sync import sync_to_async

from ._engine.acquiring import How
from ._engine.decorator import Around
from ._engine.lock import Block
from ._engine.names import bound_arguments
from ._engine.skipping import SkipReason, reason_of, skipped
from ._values.arguments import checked_template
from ._values.owner import Owner
from ._values.signatures import is_generator, signature_of
from .conf import DEFAULT_ALIAS
from .exceptions import InvalidLockConfig, LockNotAcquired
from .guards import GuardedRow, StatusGuard

__all__ = ["locked"]

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

    Args:
        name: a template that the arguments fill, or a callable that gets them and returns the name.
        ttl: seconds that the lease lasts. None: the store's TTL.
        wait: seconds to wait for the lock. 0: do not wait. None: wait for ever.
        renew: extend the lease for as long as the task runs.
        store: an alias of the setting.
        on_conflict: what a run does that finds the lock held. "skip": it returns
            ``{"status": "skipped", "reason": "already_processing", "lock": ..., "holder": ...}``.
            The reason is "cooling_down" if the lock cools, and "held_by_operator" if ``locks.hold``
            took it. "raise": it raises `LockNotAcquired`.
        guard: claims a row before the run and finishes it after. A run whose row cannot be claimed
            is skipped, with the reason "invalid_state".

    A function that has a keyword-only parameter ``lease`` gets the `Lease`. One that gets the
    task's context has its task id recorded as the owner's. ``async def`` may be decorated too.

    Raises `TypeError` or `ValueError` for a wrong argument, and `InvalidLockConfig` for a guard
    whose key is no argument of the function. A run raises what the function raises, and:

    * `LeaseLost` if its lease was lost, and the guard's row cannot show that its result counts.
    * `StatusConflict` if somebody else has changed the row.
    * `StoreUnavailable` if the store does not answer before the function is called.
    """
    if not callable(name):
        checked_template(name)
    how = How(store, ttl, wait, renew)
    if on_conflict not in ("skip", "raise"):
        raise ValueError(f'on_conflict must be "skip" or "raise", not {on_conflict!r}')
    if not isinstance(guard, StatusGuard | None):
        raise InvalidLockConfig(f"guard must be a StatusGuard or None, not {guard!r}")

    def decorate(function: Function) -> Function:
        task = _LockedTask(function, name, how, guard)
        task.answered = (LockNotAcquired,) if on_conflict == "skip" else ()
        wrapper: Any = task.wrapped()
        wrapper.__signature__ = task.signature
        return cast("Function", wrapper)

    return decorate


class _LockedTask(Around):
    """A task's function under a lock, and with the row of its guard, if there is one."""

    def __init__(self, function: Any, name: Any, how: How, guard: StatusGuard | None) -> None:
        self.signature, self.takes_lease = _signature(function)
        super().__init__(function, name, self.signature, partial(_Run, how, None, "a task"))
        self.task, self.guard = f"{function.__module__}.{function.__qualname__}", guard
        anything = any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values())
        if guard is not None and guard.pk not in self.signature.parameters and not anything:
            raise InvalidLockConfig(f"the guard's pk {guard.pk!r} must be an argument of the task")

    def prepare(self, run: _Run, args: Any, kwargs: Any) -> None:
        super().prepare(run, args, kwargs)
        run.template = run.template or f"{self.task}:{{lock_name}}"
        arguments = bound_arguments(self.signature, args, kwargs)
        task_id = getattr(getattr(arguments.get("context"), "task_result", None), "id", None)
        run.said = {"task": self.task, "task_id": task_id}
        if self.guard is not None:
            run.row = GuardedRow(self.guard, self.guard.pk_of(arguments))
            run.quiet = True  # The row says whether the result counts.

    def answer(self, run: _Run, error: Any) -> Any:
        return run.skip(reason_of(error.holder), error.holder.owner)

    def run(self, run: _Run) -> Any:
        (lease,) = run.leases
        if self.takes_lease:
            run.kwargs = {**run.kwargs, "lease": lease}
        if run.row is None:
            return super().run(run)
        row = run.row.claimed(lease)
        if self.is_async:
            return self.arun(run, row)
        with row as claimed:
            return super().run(run) if claimed else run.skip("invalid_state")

    async def arun(self, run: _Run, row: Any) -> Any:
        """As `run`; the thread of the ORM claims the row and finishes it."""
        try:
            claimed = await _finish(row.__enter__)
            result = await super().run(run) if claimed else run.skip("invalid_state")
            await _finish(row.__exit__, None, None, None)
            return result
        except GeneratorExit:
            raise  # It was closed, and cannot wait. The row is left to the next holder.
        except BaseException as error:
            # That thread makes this call after the one which is perhaps under way.
            await _finish(row.__exit__, type(error), error, error.__traceback__)
            raise


class _Run(Block):
    """The lock of one run of a task, and its row."""

    hint = ""
    row: GuardedRow | None = None

    def skip(self, reason: SkipReason, holder: Owner | None = None) -> dict[str, Any]:
        """Return the marker of a run that is skipped."""
        return skipped(self.how.store, self.name, reason=reason, holder=holder, **self.said)


async def _finish(call: Callable[..., Any], *args: Any) -> Any:
    """Make a call in the thread of the ORM, to its end whatever is cancelled."""
    return await asyncio.shield(sync_to_async(call)(*args))


def _signature(function: Any) -> tuple[inspect.Signature, bool]:
    """Return the signature that callers see, and whether the function gets the lease as well."""
    if not inspect.isroutine(function):
        raise TypeError(f"@locked must decorate a function, below @task(), not {function!r}")
    if is_generator(function):
        raise TypeError(f"@locked cannot decorate the generator {function.__qualname__}")
    signature = signature_of(function)
    lease = signature.parameters.get("lease")
    if lease is None or lease.kind is not lease.KEYWORD_ONLY:
        return signature, False
    others = [p for p in signature.parameters.values() if p is not lease]
    return signature.replace(parameters=others), True
