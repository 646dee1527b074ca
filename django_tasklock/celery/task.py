"""`LockedTask`: a Celery task that runs under a lock, and on work that a guard gave it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from celery.contrib.django.task import DjangoTask

from ..arguments import checked_name
from ..guards import StatusGuard
from ..lease import Lease
from ..naming import ArgumentNames, Binder, NameTemplate, digest_name
from ..service import LockService
from .body import Body
from .calling import called, note_calls
from .checks import known_tasks
from .options import body_signature, check_call, check_options
from .requeue import ANYWAY
from .run import Run
from .sending import Sending

__all__ = ["LockedTask"]


class LockedTask(DjangoTask, Sending):
    """A task of which one call at a time runs for each lock name.

    ``lock_name`` is a template filled from the call's arguments, or a callable of them, or
    ``by("user_id", "kind")``, the task's name and these arguments; by default the task's name
    and a digest of all. ``lock_ttl`` is in seconds (by default the store's TTL), and with
    ``lock_renew`` the lease lasts for as long as the body runs. ``lock_wait``: seconds a worker
    waits for the lock. ``lock_store``: an alias.

    ``on_conflict`` says what becomes of a call whose lock is taken by another one: "skip"
    returns a marker, so that chains, groups and chords go on; "retry" puts the message back
    and tries again for ``lock_retry_for`` seconds; "raise" fails with `LockNotAcquired`;
    "coalesce" makes one follow-up run, after the present one, of all that come meanwhile.
    ``on_outage`` says what becomes of a call when the store does not answer: "retry" puts the
    message back, "raise" fails with `StoreUnavailable`, "run" runs on the guard alone.
    ``lock_max_attempts`` bounds how often a call that kills its worker is delivered again.
    None of this uses up the task's own retries.

    ``unique_while`` keeps duplicates out of the queue: "queued" allows one waiting copy,
    "unfinished" one waiting or running. A duplicate ``apply_async`` returns the result of the
    copy that is there, or with ``on_duplicate="raise"`` raises `AlreadyQueued`. ``unique_for``:
    seconds for which a copy may wait, beyond its ETA, before another one is let in.

    ``guard`` claims a database row before the body and finishes it afterwards.

    In the body ``self.lease`` is the lease. Called directly, or inside its own run, the task
    locks as well, but never goes to the queue; ``task.run()`` is the way past the lock.
    Options are checked when the class is made: `InvalidLockConfig`.
    """

    abstract = True
    Request = "django_tasklock.celery.request:LockedRequest"
    # With acks_late a message outlives the child that worked on it. Celery's own default drops
    # it, for fear of a message that kills every worker: ``lock_max_attempts`` is what bounds that.
    reject_on_worker_lost = True

    lock_name: ClassVar[str | ArgumentNames | Callable[..., str] | None] = None
    lock_ttl: ClassVar[float | None] = None
    lock_wait: ClassVar[float | None] = 0
    lock_renew: ClassVar[bool] = True
    lock_store: ClassVar[str] = "default"
    lock_retry_for: ClassVar[float | None] = 3600
    lock_max_attempts: ClassVar[int] = 5
    on_conflict: ClassVar[Literal["skip", "retry", "raise", "coalesce"]] = "skip"
    on_outage: ClassVar[Literal["retry", "raise", "run"]] = "retry"
    unique_while: ClassVar[Literal["queued", "unfinished"] | None] = None
    unique_for: ClassVar[float] = 3600
    on_duplicate: ClassVar[Literal["return", "raise"]] = "return"
    guard: ClassVar[StatusGuard | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_options(cls)
        note_calls(cls, LockedTask.__call__)
        known_tasks.add(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = called.get()
        if call is None or call.task is not self:
            return Run(self, args, kwargs)()
        # What the body calls is another call.
        mark = called.set(None)
        try:
            return Run(self, args, kwargs, call)()
        finally:
            called.reset(mark)

    def apply_async(  # type: ignore[override]
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Send the task, once if it is to be unique; else as `celery.Task.apply_async`.

        Besides Celery's options it takes ``unique_for`` and ``on_duplicate``, for this call.
        Raises `InvalidLockConfig` for the task's other options, and for what looks like one.
        """
        check_call(self, options)
        # When the message is sent, it is seen whether it is a duplicate: `Sending`.
        return super().apply_async(args, kwargs, task_id=task_id, **options)

    def apply(self, *args: Any, **options: Any) -> Any:
        """`celery.Task.apply`, under the lock. Raises `InvalidLockConfig` as `apply_async`."""
        check_call(self, options)
        return super().apply(*args, **options)

    def send_anyway(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """`apply_async`, whatever is in the queue; the message reserves nothing."""
        return self.apply_async(args, kwargs, **{**options, ANYWAY: True})

    def call_body(
        self,
        lease: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        body: Body | None = None,
        own: bool = False,
    ) -> Any:
        """Run the body, with ``lease`` as ``self.lease``.

        ``own``: Celery made the request for this very call, and the body gets that one. A direct
        call gets a copy of what is around it. ``body`` is what has claimed the guard's row; None:
        the run around this call has.
        """
        request = self.request
        if own:
            request.__dict__.update(tasklock_lease=lease, tasklock_body=body, tasklock_enters=True)
            try:
                return super().__call__(*args, **kwargs)
            finally:
                for name in ("tasklock_lease", "tasklock_body", "tasklock_enters"):
                    request.__dict__.pop(name, None)
        _ = request.children  # One list, shared with the request pushed on top.
        pushed: dict[str, Any] = {"tasklock_lease": lease}
        if body is not None:
            pushed["tasklock_body"] = body
        # With its headers given, or Celery takes the lease for one of them.
        self.push_request(args=args, kwargs=kwargs, headers=request.headers or {}, **pushed)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.pop_request()

    def push_request(self, *args: Any, **kwargs: Any) -> None:
        """As `celery.Task.push_request`; but what a worker calls sees the worker's request.

        `celery.Task.__call__` pushes a copy, and what the body sets on that is lost: a chain that
        it breaks, or what it leaves for ``on_success``. A plain task gets round it, since
        Celery calls its ``run`` alone.
        """
        if self.request.__dict__.pop("tasklock_enters", False):
            self.request_stack.push(self.request)
        else:
            super().push_request(*args, **kwargs)

    def on_replace(self, sig: Any) -> Any:
        """As `celery.Task.on_replace`; the guard's row waits for the replacement."""
        body: Body | None = getattr(self.request, "tasklock_body", None)
        if body is not None:
            body.hand_on(at_once=bool(self.request.is_eager))
        return super().on_replace(sig)

    @property
    def lease(self) -> Lease:
        """The lease this run holds. Raises `RuntimeError` outside a locked run."""
        lease: Lease | None = getattr(self.request, "tasklock_lease", None)
        if lease is None:
            raise RuntimeError(f"{self.name} holds no lease: it was not called as a locked task")
        return lease

    def leave_row(self, leave: Callable[..., bool], lost: Lease, pk: Any) -> None:
        """Change a row whose run has lost its lease, unless the next holder has it now.

        Its status cannot tell the two apart: only the lock can.
        """
        self.clear_lost(lost)
        lease = self.locks.acquire(lost.name)
        if lease is not None:
            try:
                leave(pk)
            finally:
                lease.release()

    def clear_lost(self, lost: Lease) -> None:
        """A lease that is over by our clock may stand in the store: an extension was carried out
        there whose reply never came."""
        self.locks.clear(lost.name, lost.token, by="its own run, which had lost it")

    @cached_property
    def locks(self) -> LockService:
        """The service of this task's store."""
        return LockService(self.lock_store)

    def arguments_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments by name, with defaults. Raises `TypeError` as the call would."""
        return self._bind(args, kwargs)

    def lock_name_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The name of the lock that a call with these arguments contends for.

        Raises `TypeError` or `ValueError` if no name can be made of them.
        """
        if isinstance(type(self).lock_name, str):
            return self._template.fill(args, kwargs)
        return self.lock_name_from(self.arguments_of(args, kwargs))

    def lock_name_from(self, arguments: Mapping[str, Any]) -> str:
        """`lock_name_of`, from a call's arguments by name."""
        name = type(self).lock_name
        if name is None:
            return digest_name(str(self.name), arguments)
        if isinstance(name, ArgumentNames):
            return name.name_from(str(self.name), arguments)
        if callable(name):
            return checked_name(name(**arguments))
        return self._template.fill_from(arguments)

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
