"""``@locked`` and `enqueue_once`, for the functions and calls of Django's tasks; on any Django.

What `enqueue_once` reserves ends when any run of the job has the lock, or is over without it. Calls
of Django's tasks have no headers: a run does not know whether the reservation is for itself. One
that ends too early costs one run more, and one that ended too late would lose a call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakSet

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from ._engine.acquiring import How
from ._engine.decorator import Around
from ._engine.history import reason_of, skipped
from ._engine.keeper import keeper_of
from ._engine.lock import Block
from ._engine.names import bound_arguments, check_argument
from ._engine.service import LockedOptions
from ._engine.waiting import Steps
from ._values.arguments import check_known, checked_name, checked_ttl
from ._values.owner import Owner
from ._values.signatures import is_generator, refuse_bare, signature_of
from ._values.tokens import new_token
from .checks import check_lock, message
from .exceptions import AlreadyQueued, InvalidLockConfig, LockNotAcquired, StoreUnavailable
from .guards import GuardedRow, StatusGuard
from .signals import SkipReason
from .stores import stores
from .stores.records import key_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["aenqueue_once", "enqueue_once", "locked"]

Function = TypeVar("Function", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R", covariant=True)


# Begins what a job is reserved for while its result's id is not known: no backend has such an id.
NOT_KNOWN = "?"


class Enqueued(Protocol[P, R]):
    """A task of Django, and the result of a call."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def locked(
    name: str | Callable[..., str],
    *,
    on_conflict: Literal["skip", "raise"] = "skip",
    guard: StatusGuard | None = None,
    unique_for: float = 3600,
    **options: Unpack[LockedOptions],
) -> Callable[[Function], Function]:
    """Hold a lock for each run of a task: ``@task()`` over ``@locked("video:{video_id}")``.

    Args:
        name: a template that the arguments fill, or a callable that gets them and returns the name.
        on_conflict: what a run does that finds the lock held. "skip": it returns
            ``{"status": "skipped", "reason": "already_processing", "lock": ..., "holder": ...}``.
            The reason is "cooling_down" if the lock cools, and "held_by_operator" if ``locks.hold``
            took it. "raise": it raises `LockNotAcquired`.
        guard: claims a row before the run and finishes it after. A run whose row cannot be claimed
            is skipped, with the reason "invalid_state". Not with ``slots``.
        unique_for: seconds for which a call of `enqueue_once` may wait, beyond its ``run_after``,
            before another one is enqueued. An hour by default.
        ttl: seconds that the lease lasts. None: the store's TTL.
        wait: seconds to wait for the lock. 0, the default: do not wait. None: wait for ever.
        renew: extend the lease for as long as the task runs. True by default.
        store: an alias of the setting.
        slots, max_hold, hold_at_least, cooldown, cooldown_after_error: as for `lock`. A run that is
            skipped lets no lock cool.

    A function that has a keyword-only parameter ``lease`` gets the `Lease`; with the default None a
    type checker knows that callers do not pass it. A function that gets the task's context has its
    task id recorded as the owner's. ``async def`` may be decorated too.

    Raises `InvalidLockConfig`, which names the task, for a wrong argument, and `TypeError` for what
    is no function. A run raises what the function raises, and:

    * `LeaseLost` if its lease was lost, and the guard's row cannot show that its result counts.
    * `StatusConflict` if somebody else has changed the row.
    * `StoreUnavailable` if the store does not answer before the function is called.
    """

    refuse_bare("locked", name)

    def decorate(function: Function) -> Function:
        if not inspect.isroutine(function) or isinstance(function, classmethod | staticmethod):
            raise TypeError(f"@locked(name) decorates a function, below @task(), not {function!r}")
        path = f"{function.__module__}.{function.__qualname__}"
        try:
            task = _LockedTask(function, path, name, guard, unique_for, options)
            if on_conflict not in ("skip", "raise"):
                raise ValueError(f'on_conflict must be "skip" or "raise", not {on_conflict!r}')
        except (TypeError, ValueError) as error:
            raise InvalidLockConfig(f"task {path}: {error}") from error
        task.answered = (LockNotAcquired,) if on_conflict == "skip" else ()
        wrapper: Any = task.wrapped()
        wrapper.__signature__, wrapper.tasklock = task.signature, task
        return cast("Function", wrapper)

    return decorate


def enqueue_once(task: Enqueued[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Enqueue a call of a task, unless one with the same lock waits already.

    ``task`` is a task of Django, ``@task()`` over ``@locked(...)``, also one with other options, as
    ``task.using(run_after=...)``; then come the call's arguments. Once a run has the lock, the next
    call is enqueued. Returns the ``TaskResult``: the new one, or that of the task that waits.

    Raises `AlreadyQueued` instead if the task's backend cannot find the result of the one that
    waits. Raises `StoreUnavailable`, `TypeError` for a task of another kind, what the making of the
    lock's name raises, and what ``task.enqueue`` does: then nothing is enqueued.
    """
    asked: Any = task
    job = getattr(getattr(asked, "func", None), "tasklock", None)
    if not isinstance(job, _LockedTask):
        raise TypeError(f"enqueue_once() takes a task, @task() over @locked(...), not {task!r}")
    run, ttl, after = job.make(), job.unique_for, asked.run_after
    job.prepare(run, (NoContextBeforeTheRun(), *args) if asked.takes_context else args, kwargs)
    if after is not None:
        ttl += max(0.0, (after - datetime.now(after.tzinfo)).total_seconds())
    store, text = stores[run.how.store], f"{NOT_KNOWN}{new_token()}"
    try:
        if (waiting := _reserve(asked, run, text, ttl)) is not None:
            return cast("R", waiting)
        result: Any = asked.enqueue(*args, **kwargs)
    except BaseException:
        # At once, for the caller's next attempt; and if the store does not answer, later.
        with suppress(StoreUnavailable):
            store.unreserve(run.key, text)
        keeper_of(store).unreserve_later(run.key, text, ttl)
        raise
    names: dict[str | None, str] = {text: str(result.id)}
    with suppress(StoreUnavailable):  # It is enqueued all the same.
        # Only if its run has not ended the reservation.
        store.update_note(run.key, names.get, ttl)
    return cast("R", result)


async def aenqueue_once(task: Enqueued[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`enqueue_once`, to be awaited."""
    return await sync_to_async(enqueue_once)(task, *args, **kwargs)


def check_locked() -> list[Any]:
    """Return the messages of the system check of the functions under `locked` that are imported by
    now. If the project has the setting TASKS, the modules ``tasks`` of its apps are imported."""
    messages = []
    try:
        if settings.is_overridden("TASKS"):  # type: ignore[misc]
            autodiscover_modules("tasks")
    except InvalidLockConfig as error:
        messages.append(message("E007", error))
    except Exception:
        pass  # Whoever imports the module says why it cannot be imported.
    with suppress(InvalidLockConfig):  # The check of the stores reports it.
        for task in list(_tasks):
            for identity, what, hint in check_lock(task.guard, task.how, "store"):
                messages.append(message(identity, f"task {task.task}: {what}", hint))
    return messages


class _LockedTask(Around):
    """A task's function under a lock, and with the row of its guard, if there is one."""

    def __init__(
        self, function: Any, path: str, name: Any, guard: Any, unique_for: Any, options: Any
    ) -> None:
        self.signature, self.takes_lease = _signature(function)
        check_known("locked", options, LockedOptions.__annotations__)
        self.how = How(**{"renew": True} | options)
        super().__init__(function, name, self.signature, partial(_Run, self.how, None, "a task"))
        self.task, self.guard = path, guard
        self.unique_for = checked_ttl(unique_for, "unique_for")
        if not isinstance(guard, StatusGuard | None):
            raise ValueError(f"guard must be a StatusGuard or None, not {guard!r}")
        if guard is not None:
            check_argument("guard", guard.pk, self.signature)
            if self.how.slots != 1:
                raise ValueError(
                    "a guard needs a lock that one run at a time holds: leave out slots"
                )
        _tasks.add(self)

    def prepare(self, run: _Run, args: Any, kwargs: Any) -> None:
        super().prepare(run, args, kwargs)
        run.key, run.lasts = key_of(self.task, checked_name(run.name)), self.unique_for
        run.template = run.template or f"{self.task}:{{lock_name}}"
        arguments = bound_arguments(self.signature, args, kwargs)
        task_id = getattr(getattr(arguments.get("context"), "task_result", None), "id", None)
        run.said = {"task": self.task, "task_id": task_id}
        if self.guard is not None:
            run.row = GuardedRow(self.guard, self.guard.pk_of(arguments), who=self.task)
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


# Those of this process: the system check looks at them.
_tasks: WeakSet[_LockedTask] = WeakSet()


class _Run(Block):
    """The lock of one run of a task, and its row."""

    hint = ""
    row: GuardedRow | None = None
    # Of the reservation of its job, which lasts for so many seconds.
    key, lasts = "", 0.0

    def steps(self) -> Steps[Any]:
        """As those of a `Block`; and the reservation ends when the run has the lock, or is over."""
        try:
            try:
                won = yield from super().steps()
                self.unreserve()
                return won
            except LockNotAcquired:
                # A refused call relies on a run that starts after it: the lock may be free by now.
                if not self.unreserve():
                    raise
                self.how = replace(self.how, wait=0)
                return (yield from super().steps())
        except BaseException as error:
            if not isinstance(error, LockNotAcquired):
                self.drop()  # It may have the lock.
                keeper_of(stores[self.how.store]).unreserve_later(self.key, None, self.lasts)
            raise

    def unreserve(self) -> bool:
        """End the reservation, whoever made it and whatever it says by now. Returns False if there
        is none."""
        store = stores[self.how.store]
        return store.get_note(self.key) is not None and store.unreserve(self.key, None)

    def skip(self, reason: SkipReason, holder: Owner | None = None) -> dict[str, Any]:
        """Return the marker of a run that is skipped."""
        for lease in self.leases:
            lease.cool(None)  # Nothing was done under it.
        return skipped(stores[self.how.store], self.name, self.record(), reason, holder)


class NoContextBeforeTheRun:
    """In the place of a task's context: the error of a name that reads it says what this is."""


def _reserve(task: Any, run: _Run, text: str, ttl: float) -> Any:
    """Reserve the job of a run. Returns None, or the result of the task that waits already. Raises
    `AlreadyQueued` if that is not found, and `StoreUnavailable`."""
    over = ""
    while other := stores[run.how.store].reserve(run.key, text, ttl, over=over):
        over = str(other)
        try:
            result = task.get_result(over)
        except Exception as error:  # Each backend has its own, and some know no results.
            task_id = None if over.startswith(NOT_KNOWN) else over
            raise AlreadyQueued(str(run.name), None, task_id) from error
        if not result.is_finished:
            return result
        # Its run could not end the reservation: the store did not answer.
    return None


async def _finish(call: Callable[..., Any], *args: Any) -> Any:
    """Make a call in the thread of the ORM, to its end whatever is cancelled."""
    return await asyncio.shield(sync_to_async(call)(*args))


def _signature(function: Any) -> tuple[inspect.Signature, bool]:
    """Return the signature that callers see, and whether the function gets the lease as well."""
    if is_generator(function):
        raise TypeError(f"@locked cannot decorate the generator {function.__qualname__}")
    signature = signature_of(function)
    lease = signature.parameters.get("lease")
    if lease is None or lease.kind is not lease.KEYWORD_ONLY:
        return signature, False
    others = [p for p in signature.parameters.values() if p is not lease]
    return signature.replace(parameters=others), True
