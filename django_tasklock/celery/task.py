"""`LockedTask`: a Celery task that runs under a lock, and on a row that its guard has claimed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

from celery.exceptions import Reject
from django.utils.functional import cached_property

from .._engine.acquiring import Acquiring
from .._engine.lease import Lease
from .._engine.stopping import check_can_stop, go_on
from .._engine.waiting import blocking
from ..conf import warn_unless_installed
from ..exceptions import LockNotAcquired, StoreUnavailable
from .call import ANYWAY, BESIDE, HEADER, LEASE, Call, Send
from .conflicts import CONFLICTS, Decided
from .debounce import Debounce
from .handing import Handing, detached
from .option_checks import check_call, check_class
from .options import TaskOptions
from .redelivery import Redelivery
from .requeue import not_sent, wait_freely
from .run import Conflict, Run, Step, by_point, runs
from .unique import Unique


class Limits(Step):
    """``lock_limits``: takes a permit of each limit before the body, and releases them after it.

    A lock's conflict means "a duplicate", and a limit's means "later". So the lock is asked first,
    and only the run that has it asks for a permit of each limit. If one is full, it gives back what
    it has taken, and its message waits in the queue. A permit that is lost changes nothing: the
    lock is the safety.
    """

    def start(self, run: Run, lease: Lease | None) -> None:
        """Take the permits. A message for which there is none is requeued; a call without a message
        raises `LockNotAcquired`."""
        message, task, tries = run.message, run.task, run.message.count("tries")
        templates = [template for template, _ in task.naming.limits]
        # A run around this one may have such a permit: this one goes on under it.
        around = [had for outer in runs.get() for had in (outer.lease, *outer.permits) if had.held]
        had_already = {(had.store, had.base_name) for had in around}
        for (limit, name, token), template in zip(message.permits, templates, strict=True):
            if (task.lock_store, name) in had_already:
                continue
            how = task.how_under(limit)
            won = blocking(Acquiring(how, name, run.use, template, token, tries=tries).steps())
            if isinstance(won, Lease):
                run.permits.append(won)
            elif message.queued:
                wait_freely(message, won, name, limit.n, "limit")
            else:
                raise LockNotAcquired(name, won)

    def ended(self, run: Run, lease: Lease | None) -> None:
        """Release the permits. They cool if the body has begun, whatever became of it."""
        for permit in reversed(run.permits):
            if not run.row.begun:
                permit.cool(None)
            with suppress(StoreUnavailable):  # It is given up.
                permit.release()


class LockedTask(TaskOptions):
    """A task of which one call at a time runs for each lock name.

    In the body, ``self.lease`` is the lease. A direct call of the task, and a call inside its own
    run, lock as well, but never use the queue; ``task.run()`` bypasses the lock.

    It comes last among the bases: ``class X(Mixin, LockedTask)``. That, and these options, are
    checked when the class is made, which raises `InvalidLockConfig`. None of the options uses up
    the task's own retries.

    ``lock_name``: str, callable or ``by(...)``; default None.
        A template that is filled from the call's arguments, such as "video:{video_id}". Or a
        function of the arguments that returns the name. Or ``by("user_id", "kind")``: the task's
        name and these arguments. None: the task's name and a digest of all arguments. The name is
        made when the call is sent.
    ``lock_store``: str; default "default".
        The store: an alias of the setting ``TASKLOCK``.
    ``guard``: `StatusGuard` or None; default None.
        Claims a database row before the body runs, and finishes it afterwards.
    ``on_conflict``: str or callable; default "skip".
        What a call does when another call holds the lock. "skip": it returns a marker, so that
        chains, groups and chords go on. "retry": its message is requeued. "raise": it fails with
        `LockNotAcquired`. "coalesce": all calls that arrive during a run get one follow-up run,
        that of the newest. "replace": the newest call replaces the others, also the one that runs.
        "join": it returns what that run returns. "run": it runs without the lock, on the guard
        alone, and a warning is logged. A function gets the holder's `LockInfo`, and by name those
        of the call's arguments that it takes, and returns "skip", "retry", "raise" or "run".
    ``lock_retry_for``: float, seconds, or None; default 3600.
        With ``on_conflict="retry"``: how long a message is requeued before `LockNotAcquired`. None:
        for ever.
    ``lock_wait``: float, seconds, or None; default 0.
        How long a worker waits for the lock. None: for ever.
    ``unique_while``: "queued", "unfinished" or None; default None.
        Keeps duplicates out of the queue. "queued": one message of a job may wait. "unfinished":
        one may wait or run.
    ``unique_name``: str, callable, ``by(...)`` or None; default None.
        With ``unique_while="queued"``: what makes calls duplicates, if not the lock's name. As
        ``lock_name``.
    ``unique_for``: float, seconds; default 3600.
        How long a message may wait for its next delivery, beyond its ETA, before another one may be
        sent.
    ``on_duplicate``: "return" or "raise"; default "return".
        What ``apply_async`` does with a duplicate. "return": it returns the result of the message
        that is there. "raise": it raises `AlreadyQueued`.
    ``debounce``: float, seconds, or None; default None.
        Of calls that keep coming, the last one runs, this long after it came. Not with
        ``unique_while``.
    ``debounce_max``: float, seconds, or None; default None.
        How long after the first of these calls the last one runs at the latest; or, with
        ``on_conflict="replace"``, is replaced no more. None: no limit.
    ``lock_slots``: int from 1 to 1000, or callable; default 1.
        How many calls with the same lock name may run at once, or a function of the arguments that
        returns it. Above 1, each run holds a permit, such as ``NAME#2``. Not with a ``guard``.
    ``lock_limits``: list of ``limit(...)``; default ().
        Of each of these a run takes a permit beside its lock: ``[limit("tenant:{tenant_id}", 2)]``.
        While none is left, its message is requeued.
    ``lock_ttl``: float, seconds, or None; default None.
        How long the lease lives if nothing renews it. None: the store's ``TTL``.
    ``lock_renew``: bool; default True.
        Renew the lease for as long as the body runs.
    ``lock_max_hold``: float, seconds, or None; default None.
        How long a run holds the lock at most, also with ``lock_renew``: then its lease is lost.
        None: no limit.
    ``lock_hold_at_least``: float, seconds; default 0.
        How long the lock stays taken from its acquire, however short the run. A run that goes on,
        as in a retry, releases its lock at once all the same.
    ``lock_cooldown``: float, seconds; default 0.
        How long the lock stays taken after a run that succeeded.
    ``lock_cooldown_after_error``: float, seconds; default 0.
        How long the lock stays taken after a run that failed.
    ``on_loss``: "finish" or "stop"; default "finish".
        What becomes of a body whose lease is lost. "finish": it goes on, unless it calls
        ``assert_held()``. "stop": it is ended. Not with ``lock_renew=False``, eventlet and gevent.
    ``lock_max_attempts``: int, a number of runs; default 5.
        How many runs of one message may die, with their worker for example, before it fails with
        `TooManyAttempts`.
    ``on_outage``: "retry", "raise" or "run"; default "retry".
        What a call does when the store does not answer. "retry": its message is requeued. "raise":
        it fails with `StoreUnavailable`. "run": it runs without the lock, on the guard alone. The
        same if the guard's database does not answer before the body; "run" is "retry" then.
    """

    abstract = True
    # With acks_late the message outlives the pool child that worked on it. Celery's default is to
    # drop it, because it might kill every worker: here ``lock_max_attempts`` prevents that.
    reject_on_worker_lost = True
    # Whether the project has set ``acks_late`` itself: Celery gives the task that of the app later.
    says_acks_late = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        warn_unless_installed()
        cls.says_acks_late = cls.acks_late is not None
        check_class(cls, LockedTask)

    def worker_request(self, given: Any, consumer: Any) -> Any:
        """Return our request class, combined with the one that the project has given the task.

        Raises `InvalidLockConfig` for a task whose options are wrong, or do not go with the
        worker's pool: a worker does not start, instead of failing each of its messages.
        """
        self.check_made()
        check_can_stop(f"task {self.name}", self.on_loss == "stop")
        # Here, because only a worker is to import what Celery's requests need.
        from .request import children, combined

        children.use(consumer)
        return combined(given)

    @property
    def lease(self) -> Lease:
        """The lease that this run holds. Raises `RuntimeError` outside a locked run."""
        if self._run is None:
            what = f"{self.name} holds no lease: it was not called as a locked task"
            raise RuntimeError(f"{what}. Call the task itself, or delay(); run() takes no lock")
        return cast("Lease", self._run.lease)

    @cached_property
    def conflict(self) -> Conflict:
        """What ``on_conflict`` says."""
        said: Any = type(self).on_conflict  # A function would be bound to this instance.
        return Decided(said) if callable(said) else CONFLICTS[said]

    @cached_property
    def steps(self) -> Mapping[str, Sequence[Step]]:
        """The special behaviours that this task has, as `by_point`. Their order counts: a
        redelivery that is to be dropped or to wait is so whatever else it is."""
        debounces = self.debounce or self.conflict.replaces
        chosen = {Limits: self.lock_limits, Debounce: debounces, Unique: self.unique_while}
        own = [step() for step, is_on in chosen.items() if is_on]
        return by_point([Handing(), Redelivery(), *own, self.conflict])

    def lock_name_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the lock for a call with these arguments. Raises `TypeError` or
        `ValueError` if they do not give a valid name."""
        return self.naming.name_from(self.naming.arguments_of(args, kwargs))

    # ---------------------------------------------------------------------------- a call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Run(self, args, kwargs)()

    def call_body(self, run: Run, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the task's body, in which ``run`` is known to the request.

        If Celery made the request for this very call, the body gets that one, as in a plain task:
        changes that it makes, to its chain for example, are not lost.
        """
        request = run.message.request
        if run.message.own:
            request.tasklock_run = run
            try:
                return run.call(partial(self.run, *args, **kwargs))
            finally:
                request.tasklock_run = None  # It stays: calls in hooks are no run of the message.
        # Creates the list of children now, so that both requests share it.
        _ = request.children
        # Without explicit headers, Celery would take the run for a header.
        self.push_request(args=args, kwargs=kwargs, headers=request.headers or {}, tasklock_run=run)
        try:
            return run.call(partial(super().__call__, *args, **kwargs))
        finally:
            self.pop_request()

    def retry(self, *args: Any, **options: Any) -> Any:
        """As `celery.Task.retry`. Raises `LeaseLost` in a run whose lease is lost: a redelivery may
        work, and what this run sends would come on top. The run starts over instead. With
        ``acks_late`` the message comes back if the broker does not take the retry."""
        # Celery raises this for what could not be sent. Any other error ends the task, as after the
        # last retry.
        if not (args[3] if len(args) > 3 else options.get("throw", True)):
            self.request.__dict__.setdefault(HEADER, {})[BESIDE] = True
        with self._going_on(Reject):
            sent = super().retry(*args, **options)
        # The body goes on, and the row waits for the retry.
        if self._run is not None and not self.request.is_eager:
            self._run.row.hand_on(at_once=False)
        return sent

    def on_replace(self, sig: Any) -> Any:
        """As `celery.Task.on_replace`; the guard's row waits for the replacement. Raises as `retry`
        does."""
        with self._going_on(Exception):
            if self._run is not None:
                self._run.row.hand_on(at_once=bool(self.request.is_eager))
            return super().on_replace(sig)

    @property
    def _run(self) -> Run | None:
        return cast("Run | None", self.request.__dict__.get("tasklock_run"))

    @contextmanager
    def _going_on(self, raised: type[Exception]) -> Iterator[None]:
        """Send in the block what is to go on with the run's work. ``raised``: how it says that the
        broker did not take that; the message comes back then."""
        run = self._run
        if run is not None and run.message.late and not run.lease.detached:
            run.lease.assert_held()
        if run is not None and isinstance(run.lease, Lease):
            go_on(run.lease)
        try:
            yield
        except raised as error:
            if run is not None:
                not_sent(run.message, error)
            raise

    # ---------------------------------------------------------------------------- sending

    def apply_async(  # type: ignore[override]
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> Any:
        """As `celery.Task.apply_async`; with ``unique_while`` a duplicate is not sent.

        It also takes ``unique_for`` (seconds) and ``on_duplicate``, for this call alone, and
        ``lease``: a lease of this call's lock, or the handle that its ``detach`` returned. The run
        goes on under it instead of acquiring. The lease is detached now; if nothing can be sent, it
        is held again.

        Raises `InvalidLockConfig` for the task's other options and for misspelt ones,
        `AlreadyQueued` where ``on_duplicate`` is "raise", and `StoreUnavailable`. For a ``lease``
        it raises `LeaseLost`, and `ValueError` if the lease is of another lock or store, or of a
        run around this call that has a row to finish.
        """
        check_call(self, options)
        call = Call(self, args, kwargs, task_id, options)
        call.carry()
        send: Send = call.publish
        for step in reversed(self.steps["send"]):
            send = partial(step.send, call, send)
        return send()

    def apply_async_on_commit(  # type: ignore[override]
        self, args: Any = None, kwargs: Any = None, **options: Any
    ) -> None:
        """As `DjangoTask.apply_async_on_commit`. A ``lease`` is detached now, since the block that
        holds it may end before the transaction; after a rollback it ends with its ttl."""
        check_call(self, options)
        if (lease := options.get(LEASE)) is not None:
            options[LEASE] = detached(Call(self, args, kwargs, None, options), lease)
        super().apply_async_on_commit(args, kwargs, **options)

    def apply(self, *args: Any, **options: Any) -> Any:
        """As `celery.Task.apply`, under the lock. Raises `InvalidLockConfig` as `apply_async`."""
        check_call(self, options)
        if LEASE in options:
            raise TypeError("apply() sends nothing, and takes no lease: use apply_async()")
        return super().apply(*args, **options)

    def send_anyway(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """As `apply_async`, but sends a duplicate as well. The message reserves nothing."""
        return self.apply_async(args, kwargs, **{**options, ANYWAY: True})
