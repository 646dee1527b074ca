"""The options of a locked task, each said once, and what follows from them.

An option is an attribute of `TaskOptions` with a comment of one form: a line with its type and its
unit, and what it does, in the Markdown of ``docs/reference/``. Its annotation says how its values
are checked, which ``option_checks.py`` does. ``python -m tests.docs.task_options`` makes the table
of the reference page of all this, and the docstring of `LockedTask`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

from django.utils.functional import cached_property

from .._compat.celery import WorkerTask, keeps_results, keeps_successes
from .._engine.acquiring import How
from .._engine.names import ArgumentNames
from .._engine.service import LockService
from .._values import arguments
from .._values.arguments import checked_slots
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard
from .naming import Naming


def _slots(value: Any, option: str) -> object:
    return callable(value) or checked_slots(value, option)


def _ttl_or_none(value: Any, option: str) -> object:
    return value is None or arguments.checked_ttl(value, option)


def _name(value: Any, option: str) -> None:
    if not (value is None or isinstance(value, str | ArgumentNames) or callable(value)):
        raise ValueError(f"{option} must be a template, by(...) or a callable, not {value!r}")


def _limits(value: Any, option: str) -> None:
    if not (isinstance(value, list | tuple) and all(isinstance(each, Limit) for each in value)):
        raise ValueError(f"{option} must be a list of limit(...), not {value!r}")
    for each in value:
        _name(each.name, f"the name of {each}")
        checked_slots(each.n, f"the n of {each}")
        arguments.checked_seconds(each.hold_at_least, f"hold_at_least of {each}")


def _guard(value: Any, option: str) -> None:
    if not isinstance(value, StatusGuard | None):
        raise ValueError(f"{option} must be a StatusGuard, not {value!r}")


def _runs(value: Any, option: str) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{option} must be a number of runs >= 1, not {value!r}")


# Beside the type stands what its values are checked with: a function that gets a value and the
# option's name, and raises `TypeError` or `ValueError`. An option without one has few values.
Name = Annotated[str | ArgumentNames | Callable[..., str] | None, _name]
Seconds = Annotated[float, arguments.checked_seconds]
TtlOrNone = Annotated[float | None, _ttl_or_none]
Wait = Annotated[float | None, arguments.checked_wait]


class Limit(NamedTuple):
    """One of a task's ``lock_limits``: at most ``n`` runs at once hold a permit of ``name``.

    Args:
        name: as ``lock_name``. Tasks and other code that use the same name share the permits.
        n: from 1 to 1000.
        hold_at_least: seconds for which a permit stays taken from its grant, however short the run:
            at most ``n`` runs begin in so many seconds.

    The definition of the task raises `InvalidLockConfig` for wrong arguments.
    """

    name: str | ArgumentNames | Callable[..., str]
    n: int
    hold_at_least: float = 0


limit = Limit


class TaskOptions(WorkerTask):
    """The options of a locked task, and what is made of them once. See `LockedTask`."""

    abstract = True

    # ----------------------------------------------------------------------------- Who is kept out?

    #: str, callable or `by(...)`
    #: A template that is filled from the call's arguments, such as `"video:{video_id}"`. Or a
    #: function of the arguments that returns the name. Or `by("user_id", "kind")`: the task's name
    #: and these arguments. None: the task's name and a digest of all arguments. [The name is made
    #: when the call is sent](#the-locks-name).
    lock_name: ClassVar[Name] = None
    #: str
    #: The store: an alias of the setting [`TASKLOCK`](settings.md).
    lock_store: ClassVar[Annotated[str, arguments.checked_text]] = "default"
    #: `StatusGuard` or None
    #: Claims a [database row](api.md#guards) before the body runs, and finishes it afterwards.
    guard: ClassVar[Annotated[StatusGuard | None, _guard]] = None

    # -------------------------------------------------------------------- What does a duplicate do?

    #: str or callable
    #: What a call does when another call [holds the lock](../howto/retries.md). `"skip"`: it
    #: returns a marker, so that chains, groups and chords go on. `"retry"`: its message is
    #: requeued. `"raise"`: it fails with `LockNotAcquired`. `"coalesce"`: all calls that arrive
    #: during a run get one follow-up run, that of the newest. `"replace"`: the newest call
    #: replaces the others, also the one that runs. `"join"`: it returns what that run returns.
    #: `"run"`: it runs without the lock, on the guard alone, and a warning is logged. A function
    #: gets the holder's `LockInfo`, and by name those of the call's arguments that it takes, and
    #: returns `"skip"`, `"retry"`, `"raise"` or `"run"`.
    on_conflict: ClassVar[str | Callable[..., str]] = "skip"
    #: float, seconds, or None
    #: With `on_conflict="retry"`: how long a message is requeued before `LockNotAcquired`. None:
    #: for ever.
    lock_retry_for: ClassVar[Wait] = 3600
    #: float, seconds, or None
    #: How long a worker waits for the lock. None: for ever.
    lock_wait: ClassVar[Wait] = 0
    #: `"queued"`, `"unfinished"` or None
    #: Keeps [duplicates out of the queue](../howto/unique-jobs.md). `"queued"`: one message of a
    #: job may wait. `"unfinished"`: one may wait or run.
    unique_while: ClassVar[Literal["queued", "unfinished", None]] = None
    #: str, callable, `by(...)` or None
    #: With `unique_while="queued"`: what makes calls duplicates, if not the lock's name. As
    #: `lock_name`.
    unique_name: ClassVar[Name] = None
    #: float, seconds
    #: How long a message may wait for its next delivery, beyond its ETA, before another one may be
    #: sent.
    unique_for: ClassVar[Annotated[float, arguments.checked_ttl]] = 3600
    #: `"return"` or `"raise"`
    #: What `apply_async` does with a duplicate. `"return"`: it returns the result of the message
    #: that is there. `"raise"`: it raises `AlreadyQueued`.
    on_duplicate: ClassVar[Literal["return", "raise"]] = "return"
    #: float, seconds, or None
    #: Of [calls that keep coming](../howto/unique-jobs.md#debounce), the last one runs, this long
    #: after it came. Not with `unique_while`.
    debounce: ClassVar[TtlOrNone] = None
    #: float, seconds, or None
    #: How long after the first of these calls the last one runs at the latest; or, with
    #: `on_conflict="replace"`, is replaced no more. None: no limit.
    debounce_max: ClassVar[TtlOrNone] = None

    # ------------------------------------------------------------------------ How many run at once?

    #: int from 1 to 1000, or callable
    #: How many calls with the same lock name [may run at once](../howto/slots.md), or a function of
    #: the arguments that returns it. Above 1, each run holds a permit, such as `NAME#2`. Not with a
    #: `guard`.
    lock_slots: ClassVar[Annotated[int | Callable[..., int], _slots]] = 1
    #: list of `limit(...)`
    #: Of each of these a run takes [a permit](../howto/slots.md#limits-beside-the-lock) beside its
    #: lock: `[limit("tenant:{tenant_id}", 2)]`. While none is left, its message is requeued.
    lock_limits: ClassVar[Annotated[Sequence[Limit], _limits]] = ()

    # ------------------------------------------------------------------------------------ How long?

    #: float, seconds, or None
    #: How long the lease lives if nothing renews it. None: the store's `TTL`.
    lock_ttl: ClassVar[TtlOrNone] = None
    #: bool
    #: Renew the lease for as long as the body runs.
    lock_renew: ClassVar[Annotated[bool, arguments.checked_flag]] = True
    #: float, seconds, or None
    #: How long a run holds the lock at most, also with `lock_renew`: then
    #: [its lease is lost](#attempts). None: no limit.
    lock_max_hold: ClassVar[TtlOrNone] = None
    #: float, seconds
    #: How long the lock [stays taken](../howto/cooling.md) from its acquire, however short the run.
    #: A run that goes on, as in a retry, releases its lock at once all the same.
    lock_hold_at_least: ClassVar[Seconds] = 0
    #: float, seconds
    #: How long the lock stays taken after a run that succeeded.
    lock_cooldown: ClassVar[Seconds] = 0
    #: float, seconds
    #: How long the lock stays taken after a run that failed.
    lock_cooldown_after_error: ClassVar[Seconds] = 0

    # -------------------------------------------------- What if a run dies, or the store is silent?

    #: `"finish"` or `"stop"`
    #: What becomes of a body whose lease is lost. `"finish"`: it goes on, unless it calls
    #: `assert_held()`. `"stop"`: [it is ended](#attempts). Not with `lock_renew=False`, eventlet
    #: and gevent.
    on_loss: ClassVar[Literal["finish", "stop"]] = "finish"
    #: int, a number of runs
    #: How many runs of one message [may die](#attempts), with their worker for example, before it
    #: fails with `TooManyAttempts`.
    lock_max_attempts: ClassVar[Annotated[int, _runs]] = 5
    #: `"retry"`, `"raise"` or `"run"`
    #: What a call does when the store [does not answer](../howto/retries.md#outages). `"retry"`:
    #: its message is requeued. `"raise"`: it fails with `StoreUnavailable`. `"run"`: it runs
    #: without the lock, on the guard alone. The same if the guard's database does not answer before
    #: the body; `"run"` is `"retry"` then.
    on_outage: ClassVar[Literal["retry", "raise", "run"]] = "retry"

    # What `check_class` found while Celery made all tasks; "": nothing.
    config_error = ""
    # What ``on_conflict`` says: `LockedTask` knows the classes.
    conflict = cast("Any", None)

    def check_made(self) -> None:
        """Raise `InvalidLockConfig` if an option is wrong: the task cannot be used."""
        if self.config_error:
            raise InvalidLockConfig(f"task {self.name}: {self.config_error}")

    @cached_property
    def naming(self) -> Naming:
        """How the calls of this task name their locks. Raises as `check_made` does."""
        self.check_made()
        return Naming(type(self))

    @cached_property
    def locks(self) -> LockService:
        """The service of this task's store."""
        return LockService(self.lock_store)

    def how(self, wait: float | None = 0, slots: int = 1) -> How:
        """How a call takes its lock: it waits so many seconds, for a permit of so many."""
        if (how := self._hows.get((wait, slots))) is None:
            how = self._hows[wait, slots] = How(
                self.lock_store, self.lock_ttl, wait, self.lock_renew, slots,
                hold_at_least=self.lock_hold_at_least, cooldown=self.lock_cooldown,
                cooldown_after_error=self.lock_cooldown_after_error, max_hold=self.lock_max_hold,
            )  # fmt: skip
        return how

    def how_under(self, limit: Limit) -> How:
        """How a run takes its permit of a limit."""
        how = self.how(0, limit.n)
        return replace(how, hold_at_least=limit.hold_at_least, cooldown=0, cooldown_after_error=0)

    @cached_property
    def _hows(self) -> dict[tuple[float | None, int], How]:
        return {}

    @cached_property
    def shows_results(self) -> bool:
        """Whether other calls can read in the result backend what a call has returned."""
        return not self.ignore_result and keeps_results(self.backend)

    @cached_property
    def keeps_results(self) -> bool:
        """Whether the result backend knows how a call has ended, also after a redelivery began."""
        return self.shows_results and (keeps_successes(self.backend) or not self.track_started)


# The names of all options: of the attributes that have an annotation.
OPTIONS = tuple(TaskOptions.__annotations__)
