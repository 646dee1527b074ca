"""``@locked``: a lock and a guard for the functions of Django's tasks; on any Django."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Literal, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from ._engine.acquiring import Acquiring, How
from ._engine.aio import drive
from ._engine.lease import Lease, Use
from ._engine.names import NameTemplate, bound_arguments
from ._engine.skipping import SkipReason, reason_of, skipped
from ._engine.waiting import Steps, blocking
from ._values.arguments import checked_template
from ._values.lock_info import LockInfo
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
        signature, takes_lease = _signature(function)
        fill = name if callable(name) else NameTemplate(name, signature).fill_from
        anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        if guard is not None and guard.pk not in signature.parameters and not anything:
            raise InvalidLockConfig(f"the guard's pk {guard.pk!r} must be an argument of the task")
        task = f"{function.__module__}.{function.__qualname__}"

        def begin(args: Any, kwargs: Any) -> _Run:
            arguments, use = bound_arguments(signature, args, kwargs), Use("a task")
            lock_name = fill(*args, **kwargs) if callable(name) else fill(arguments)
            template = f"{task}:{{lock_name}}" if callable(name) else name
            task_id = getattr(getattr(arguments.get("context"), "task_result", None), "id", None)
            steps = Acquiring(how, lock_name, use, use.record(task, task_id), template).steps()
            skip = partial(skipped, store, lock_name, task, task_id)
            row = None if guard is None else GuardedRow(guard, guard.pk_of(arguments))
            return _Run(lock_name, use, steps, skip, on_conflict, row)

        def call(lease: Lease, args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs, **({"lease": lease} if takes_lease else {}))

        def run_sync(*args: Any, **kwargs: Any) -> Any:
            run = begin(args, kwargs)
            with run.working(blocking(run.steps)) as got:
                return call(got, args, kwargs) if isinstance(got, Lease) else got

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            # Not in a thread of its own: whatever names the lock or claims the row uses the ORM.
            run = await sync_to_async(begin)(args, kwargs)
            # That thread must not wait: the holder may need it to come to its end.
            working = run.working(await drive(store, run.steps, run.use.drop))
            try:
                got = await _finish(working.__enter__)
                result = await call(got, args, kwargs) if isinstance(got, Lease) else got
                await _finish(working.__exit__, None, None, None)
                return result
            except GeneratorExit:
                raise  # It was closed, and cannot wait. The row is left to the next holder.
            except BaseException as error:
                # That thread makes this call after the one which is perhaps under way.
                await _finish(working.__exit__, type(error), error, error.__traceback__)
                raise
            finally:
                run.use.drop()  # If that was not to be: it was closed, or cancelled again.

        run_it = run_async if iscoroutinefunction(function) else run_sync
        wrapper: Any = wraps(function)(run_it)
        wrapper.__signature__ = signature
        return cast("Function", wrapper)

    return decorate


@dataclass
class _Run:
    """One run of a task: its lock, and the row of its guard, if there is one."""

    name: str
    use: Use
    # They take the lock.
    steps: Steps[Lease | LockInfo]
    # Makes the marker of a skipped run, of the reason and of whoever has the lock.
    skip: Callable[[SkipReason, Owner | None], dict[str, Any]]
    on_conflict: str
    row: GuardedRow | None

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
        try:
            with nullcontext(True) if self.row is None else self.row.claimed(won) as claimed:
                yield won if claimed else self.skip("invalid_state", None)
        except GeneratorExit:
            raise  # Nobody waits for the end of a coroutine that was closed.
        except BaseException:
            self.use.end(failed=True)
            raise
        # With a row, that says whether the result counts.
        self.use.end(failed=not claimed, quiet=self.row is not None)


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
