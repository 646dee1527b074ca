"""`TaskBase`: a task's options, the name of its lock, and the call of its body.

The other modules of this package work with this class. `LockedTask` adds what uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from .._compat.celery import WorkerTask
from .._engine.binding import Binder
from .._engine.causes import BY_RUN
from .._engine.cooling import CoolingTimes, cooling_times
from .._engine.lease import Lease
from .._engine.names import ArgumentNames, NameTemplate, digest_name
from .._engine.service import LockService
from .._values.arguments import checked_name
from .._values.slots import checked_slots, permit_names
from .._values.weak_set import SharedWeakSet
from ..guards import StatusGuard
from .options import body_signature

__all__ = ["TaskBase", "known_tasks"]

# Of the attributes that `call_body` sets on a request, those that it must take away again.
_OWN_ATTRIBUTES = ("tasklock_lease", "tasklock_body")


class TaskBase(WorkerTask):
    """The options of a locked task, and what they mean for one call. See `LockedTask`."""

    abstract = True

    lock_name: ClassVar[str | ArgumentNames | Callable[..., str] | None] = None
    lock_slots: ClassVar[int | Callable[..., int]] = 1
    lock_ttl: ClassVar[float | None] = None
    lock_wait: ClassVar[float | None] = 0
    lock_renew: ClassVar[bool] = True
    lock_hold_at_least: ClassVar[float] = 0
    lock_cooldown: ClassVar[float] = 0
    lock_cooldown_after_error: ClassVar[float] = 0
    lock_store: ClassVar[str] = "default"
    lock_retry_for: ClassVar[float | None] = 3600
    lock_max_attempts: ClassVar[int] = 5
    on_conflict: ClassVar[Literal["skip", "retry", "raise", "coalesce", "run"]] = "skip"
    on_outage: ClassVar[Literal["retry", "raise", "run"]] = "retry"
    unique_while: ClassVar[Literal["queued", "unfinished"] | None] = None
    unique_for: ClassVar[float] = 3600
    on_duplicate: ClassVar[Literal["return", "raise"]] = "return"
    debounce: ClassVar[float | None] = None
    debounce_max: ClassVar[float | None] = None
    guard: ClassVar[StatusGuard | None] = None

    @property
    def lease(self) -> Lease:
        """The lease that this run holds. Raises `RuntimeError` outside a locked run."""
        lease: Lease | None = getattr(self.request, "tasklock_lease", None)
        if lease is None:
            raise RuntimeError(f"{self.name} holds no lease: it was not called as a locked task")
        return lease

    @cached_property
    def locks(self) -> LockService:
        """The service of this task's store."""
        return LockService(self.lock_store)

    @cached_property
    def cooling_times(self) -> CoolingTimes | None:
        """How long the lock stays taken after a run that has ended; None: not at all."""
        return cooling_times(
            self.lock_hold_at_least,
            self.lock_cooldown,
            self.lock_cooldown_after_error,
            prefix="lock_",
        )

    # ---------------------------------------------------------------------------- naming

    def arguments_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name, with defaults. Raises `TypeError` as the call does."""
        return self._bind(args, kwargs)

    def lock_name_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the lock for a call with these arguments.

        Raises `TypeError` or `ValueError` if the arguments do not give a valid name.
        """
        if isinstance(type(self).lock_name, str):
            return self._template.fill(args, kwargs)
        return self.lock_name_from(self.arguments_of(args, kwargs))

    def lock_name_from(self, arguments: Mapping[str, Any]) -> str:
        """As `lock_name_of`, from a call's arguments by name."""
        name = type(self).lock_name
        if name is None:
            return digest_name(str(self.name), arguments)
        if isinstance(name, ArgumentNames):
            return name.name_from(str(self.name), arguments)
        if callable(name):
            return checked_name(name(**arguments))
        return self._template.fill_from(arguments)

    @property
    def name_template(self) -> str:
        """The lock's name with fields in the place of all values: the same for every call."""
        name = type(self).lock_name
        if isinstance(name, str):
            return name
        if isinstance(name, ArgumentNames):
            return ":".join((str(self.name), *(f"{{{each}}}" for each in name.names)))
        return f"{self.name}:{{arguments}}" if name is None else f"{self.name}:{{lock_name}}"

    def lock_slots_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return how many calls with this name may run at once, for a call with these arguments.

        Raises `TypeError` or `ValueError` if ``lock_slots`` does not return a valid number, and
        what else it raises.
        """
        slots = type(self).lock_slots
        if not callable(slots):
            return slots
        found = slots(**self.arguments_of(args, kwargs))
        try:
            return checked_slots(found)
        except (TypeError, ValueError) as error:
            raise type(error)(f"lock_slots of the task {self.name}: {error}") from error

    def locks_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """Return the names of the locks one of which a run of this call may hold.

        Raises what `lock_name_of` and `lock_slots_of` raise.
        """
        name, slots = self.lock_name_of(args, kwargs), self.lock_slots_of(args, kwargs)
        return [name] if slots == 1 else permit_names(name, slots)

    @cached_property
    def _bind(self) -> Binder:
        signature = body_signature(type(self))
        assert signature is not None
        return Binder(signature)

    @cached_property
    def _template(self) -> NameTemplate:
        name, signature = type(self).lock_name, body_signature(type(self))
        assert isinstance(name, str)
        assert signature is not None
        return NameTemplate(name, signature)

    # ---------------------------------------------------------------------------- the body's call

    def call_body(
        self,
        lease: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        body: object | None = None,
        own: bool = False,
    ) -> Any:
        """Run the task's body, with ``lease`` as ``self.lease``. Returns and raises what it does.

        ``own``: Celery made the current request for this very call, so the body gets that request.
        Any other call gets a copy of the request around it. ``body``: the `Body` that claimed the
        guard's row; None if the run around this call claimed it.
        """
        request = self.request
        if own:
            attributes = request.__dict__
            attributes["tasklock_lease"], attributes["tasklock_body"] = lease, body
            try:
                # As a worker does with a plain task. Celery's ``__call__`` would push a copy of the
                # request, and changes that the body makes to a copy are lost: a chain that it
                # stops, or an attribute that it sets for ``on_success``.
                return self.run(*args, **kwargs)
            finally:
                for name in _OWN_ATTRIBUTES:
                    attributes.pop(name, None)
        # Creates the list of children now, so that both requests share it.
        _ = request.children
        pushed: dict[str, Any] = {"tasklock_lease": lease}
        if body is not None:
            pushed["tasklock_body"] = body
        # Without explicit headers, Celery would take the lease for a header.
        self.push_request(args=args, kwargs=kwargs, headers=request.headers or {}, **pushed)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.pop_request()

    # ---------------------------------------------------------------------------- lost leases

    def leave_row(self, leave: Callable[..., bool], lost: Lease, pk: Any) -> None:
        """Call ``leave(pk)`` for the row of a run whose lease is over, unless the lock is taken.

        Only the lock shows whether another run has the row: the row's status is the same.
        """
        self.clear_lost(lost)
        lease = self.locks.acquire(lost.name)
        if lease is not None:
            try:
                leave(pk)
            finally:
                lease.release()

    def clear_lost(self, lost: Lease) -> None:
        """Clear a lost lease from the store.

        The store may still have it: it extended the lease, but its reply never arrived. A lease
        that was handed on is not lost: whoever adopts it has it, with the same token.
        """
        if not lost._is_detached():
            self.locks.clear(lost.name, lost.token, by=BY_RUN)


known_tasks: SharedWeakSet[type[TaskBase]] = SharedWeakSet()
"""every task class that was made, for the system checks"""
