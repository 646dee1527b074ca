"""`LockedTask`: a Celery task that runs under a lock, and on a row that its guard has claimed."""

from __future__ import annotations

from typing import Any

from celery.exceptions import Reject

from .base import TaskBase, known_tasks
from .body import Body
from .calling import called, note_calls
from .ending import is_of_hook
from .handing import detached, handed_on
from .headers import ANYWAY, LEASE
from .options import check_call, check_options, check_order
from .requeue import deliver_again, not_taken
from .run import Run
from .sending import Sending

__all__ = ["LockedTask"]


class LockedTask(TaskBase, Sending):
    """A task of which one call at a time runs for each lock name.

    In the body, ``self.lease`` is the lease. A direct call of the task, and a call inside its own
    run, lock as well, but never use the queue; ``task.run()`` bypasses the lock.

    It comes last among the bases: ``class X(Mixin, LockedTask)``. That, and these options, are
    checked when the class is made, which raises `InvalidLockConfig`. None of the options uses up
    the task's own retries.

    ``lock_name``: str, callable or `by`; default None.
        A template that is filled from the call's arguments, such as ``"video:{video_id}"``; a
        function of the arguments that returns the name; or ``by("user_id", "kind")``, the task's
        name and these arguments. None: the task's name and a digest of all arguments.
    ``lock_slots``: int from 1 to 1000, or callable; default 1.
        How many calls with the same lock name may run at once, or a function of the arguments that
        returns it. Above 1, each run holds a permit, such as ``NAME#2``. Not with a ``guard``.
    ``lock_ttl``: float, seconds; default None, the store's ``TTL``.
        How long the lease lives if nothing renews it.
    ``lock_wait``: float, seconds, or None for ever; default 0.
        How long a worker waits for the lock.
    ``lock_renew``: bool; default True.
        Renew the lease for as long as the body runs.
    ``lock_hold_at_least``: float, seconds; default 0.
        After a run that has ended, the lock stays taken until so long after it was acquired.
    ``lock_cooldown``, ``lock_cooldown_after_error``: float, seconds; default 0.
        After a run that succeeded, or that failed, the lock stays taken for so long. A run that
        goes on, as in a retry, releases its lock at once, whatever these three say.
    ``lock_store``: str; default ``"default"``.
        The alias of the store.
    ``on_conflict``: "skip", "retry", "raise", "coalesce" or "run"; default ``"skip"``.
        What a call does when another call holds the lock. "skip": it returns a marker, so that
        chains, groups and chords go on. "retry": its message is requeued. "raise": it fails with
        `LockNotAcquired`. "coalesce": all calls that arrive during a run get one follow-up run.
        "run": it runs without the lock, on the guard alone, and a warning is logged.
    ``lock_retry_for``: float, seconds, or None for ever; default 3600.
        With ``on_conflict="retry"``: how long a message is requeued before `LockNotAcquired`.
    ``on_outage``: ``"retry"``, ``"raise"`` or ``"run"``; default ``"retry"``.
        What a call does when the store does not answer. "retry": its message is requeued. "raise":
        it fails with `StoreUnavailable`. "run": it runs without the lock, on the guard alone.
    ``lock_max_attempts``: int, a number of runs; default 5.
        How many runs of one message may die, with their worker for example, before it fails with
        `TooManyAttempts`.
    ``unique_while``: ``"queued"``, ``"unfinished"`` or None; default None.
        Keeps duplicates out of the queue. "queued": one message of a job may wait. "unfinished":
        one may wait or run.
    ``on_duplicate``: ``"return"`` or ``"raise"``; default ``"return"``.
        What ``apply_async`` does with a duplicate. "return": it returns the result of the message
        that is there. "raise": it raises `AlreadyQueued`.
    ``unique_for``: float, seconds; default 3600.
        How long a message may wait, beyond its ETA, before another one may be sent.
    ``debounce``: float, seconds, or None; default None.
        Of calls that keep coming, the last one runs, this long after it came. Not with
        ``unique_while``.
    ``debounce_max``: float, seconds, or None for no limit; default None.
        How long after the first of these calls the last one runs at the latest.
    ``guard``: `StatusGuard` or None; default None.
        Claims a database row before the body runs, and finishes it afterwards.
    """

    abstract = True
    # With acks_late the message outlives the pool child that worked on it. Celery's default is to
    # drop it, because it might kill every worker: here ``lock_max_attempts`` prevents that.
    reject_on_worker_lost = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_options(cls)
        check_order(cls, LockedTask)
        note_calls(cls, LockedTask.__call__)
        known_tasks.add(cls)

    @classmethod
    def bind(cls, app: Any) -> Any:
        """As `celery.Task.bind`. Raises `InvalidLockConfig` for wrong ``task_annotations``."""
        bound = super().bind(app)
        if app.annotations:  # They have set attributes of the class since it was checked.
            check_options(cls)
        return bound

    def worker_request(self, given: Any) -> Any:
        """Return our request class, combined with the one that the project has given the task.

        Raises `InvalidLockConfig` if that is no request class of Celery's.
        """
        # Here, because only a worker is to import what Celery's requests need.
        from .request import combined

        return combined(self, given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = called.get()
        if call is not None and call.task is not self:
            call = None
        hook = is_of_hook(self.request, *(call[1:] if call else (args, kwargs)))
        if hook:
            self.push_request(args=args, kwargs=kwargs)  # That of a direct call.
        # If a call is noted, it is this one. Calls inside the body are other calls.
        mark = called.set(None)
        try:
            return Run(self, args, kwargs, call)()
        finally:
            called.reset(mark)
            if hook:
                self.pop_request()

    def apply_async(  # type: ignore[override]
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Any:
        """As `celery.Task.apply_async`; with ``unique_while`` a duplicate is not sent.

        It also takes ``unique_for`` (seconds) and ``on_duplicate``, for this call alone, and
        ``lease``: a lease of this call's lock, or the handle that its ``detach`` returned. The run
        goes on under it instead of acquiring. The lease is detached now; if nothing can be sent, it
        is held again.

        Raises `InvalidLockConfig` for the task's other options and for misspelt ones,
        `AlreadyQueued` where ``on_duplicate`` is "raise", and `StoreUnavailable`; for a ``lease``
        `LeaseLost`, and `ValueError` if it is of another lock or store, or of a run around this
        call that has not finished the row of this call, or whose row has no fence.
        """
        check_call(self, options)
        if options.get(LEASE) is None:
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        with handed_on(self, options, args, kwargs):
            # `Sending` looks for a duplicate at the moment when the message is sent.
            return super().apply_async(args, kwargs, task_id=task_id, **options)

    def apply_async_on_commit(  # type: ignore[override]
        self, *args: Any, **options: Any
    ) -> None:
        """As `DjangoTask.apply_async_on_commit`. A ``lease`` is detached now, since the block that
        holds it may end before the transaction; after a rollback it ends with its ttl."""
        check_call(self, options)
        given = dict(zip(("args", "kwargs"), args, strict=False))
        detached(self, options, *((given | options).get(of) for of in ("args", "kwargs")))
        super().apply_async_on_commit(*args, **options)

    def apply(self, *args: Any, **options: Any) -> Any:
        """As `celery.Task.apply`, under the lock. Raises `InvalidLockConfig` as `apply_async`."""
        check_call(self, options)
        if LEASE in options:
            raise TypeError("apply() takes no lease: it runs here, and apply_async() hands one on")
        return super().apply(*args, **options)

    def send_anyway(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """As `apply_async`, but sends a duplicate as well. The message reserves nothing."""
        return self.apply_async(args, kwargs, **{**options, ANYWAY: True})

    def retry(self, *args: Any, **options: Any) -> Any:
        """As `celery.Task.retry`. Raises `LeaseLost` in a run whose lease is lost: a redelivery may
        work, and what this run sends would come on top. The run starts over instead. With
        ``acks_late`` it raises `Reject` if the broker does not take the retry, and the broker
        delivers the message of this run again."""
        body = self._body_in_time()
        if body is not None:
            throw = args[3] if len(args) > 3 else options.get("throw", True)
            body.retrying(goes_on=not throw)
        try:
            return super().retry(*args, **options)
        except Reject as error:
            # Celery's, of what could not be sent. Any other error ends the task, as after the last
            # retry.
            self._deliver_again_if_not_taken(body, error.args[0])
            raise

    def on_replace(self, sig: Any) -> Any:
        """As `celery.Task.on_replace`; the guard's row waits for the replacement. Raises
        `LeaseLost` and `Reject` as `retry` does."""
        body = self._body_in_time()
        if body is not None:
            body.hand_on(at_once=bool(self.request.is_eager))
        try:
            return super().on_replace(sig)
        except Exception as error:
            self._deliver_again_if_not_taken(body, error)
            raise

    def _deliver_again_if_not_taken(self, body: Body | None, error: object) -> None:
        if body is not None and body.survives and isinstance(error, not_taken(self)):
            deliver_again(self, error)

    def _body_in_time(self) -> Body | None:
        """The body that runs now, if any. Raises `LeaseLost` if it may not send what goes on."""
        body: Body | None = getattr(self.request, "tasklock_body", None)
        if body is not None:
            body.assert_in_time(getattr(self.request, "tasklock_lease", None))
        return body
