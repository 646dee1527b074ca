"""The options of a locked task, each said once, and what follows from them: the names that a call
locks and reserves.

An option is an attribute of `TaskOptions` with a comment of one form: a line with its type and its
unit, and what it does, in the Markdown of ``docs/reference/``. Its annotation says how its values
are checked, which ``option_checks.py`` does. ``python -m tests.docs.task_options`` makes the table
of the reference page of all this, and the docstring of `LockedTask`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

from django.utils.functional import cached_property

from .._compat.celery import WorkerTask, keeps_results, keeps_successes
from .._engine.acquiring import How
from .._engine.names import ArgumentNames, NameTemplate, bound_arguments, digest_name
from .._engine.service import LockService
from .._values import arguments
from .._values.arguments import checked_name, checked_slots
from .._values.signatures import signature_of
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard


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


# Why a call's lock and its limits must not have one name.
SAME_NAMES = (
    "lock_name and all lock_limits must give different names: while a lock NAME is held, no permit "
    "of NAME is granted. Change one of them"
)


class Names(NamedTuple):
    """What a call locks and reserves. It travels in our header of its message, by these keys."""

    # The lock's.
    name: str
    # How many calls with that name may run at once.
    slots: int = 1
    # Of ``lock_limits``, in their order.
    limits: Sequence[str] = ()
    # Of ``unique_name``; "": the lock's.
    unique: str = ""


class Naming:
    """The arguments of each call of one task, and what it locks and reserves.

    ``template`` is the lock's name with fields in the place of all values: the same for every call.
    ``name_from`` makes the lock's name of a call's arguments. ``limits`` has both of each limit, a
    template and what makes the name.

    ``task`` is the class: a function that is its attribute would be bound to an instance. Raises
    `TypeError` or `ValueError` for a name that does not go with the body's arguments.
    """

    def __init__(self, task: Any) -> None:
        # Of the body, as an instance has it: without ``self``.
        self.signature = signature_of(object.__new__(task).run)
        self._task, self._slots = str(task.name), task.lock_slots
        parameters = self.signature.parameters.values()
        plain = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
        self._plain = [each.name for each in parameters] if plain else []
        self._defaults = [each.default for each in parameters if each.default is not each.empty]
        self.template, self.name_from = self._named_by(task.lock_name)
        self.limits = [self._named_by(each.name) for each in task.lock_limits]
        self._unique = task.unique_name and self._named_by(task.unique_name)

    def arguments_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments as `bound_arguments`. Raises `TypeError` as the call does."""
        # Mostly all arguments are given by position. To bind a signature takes far longer.
        absent = len(self._plain) - len(args)
        if not kwargs and self._plain and 0 <= absent <= len(self._defaults):
            defaults = self._defaults[len(self._defaults) - absent :]
            return dict(zip(self._plain, [*args, *defaults], strict=True))
        return bound_arguments(self.signature, args, kwargs)

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Names:
        """Return what a call with these arguments locks and reserves.

        Raises `TypeError` or `ValueError` if the arguments do not give a valid name, or no number
        of slots, and what a function of the project's raises.
        """
        arguments = self.arguments_of(args, kwargs)
        name, slots = self.name_from(arguments), self._slots
        if callable(slots):
            slots = checked_slots(slots(**arguments), f"lock_slots of the task {self._task}")
        limits = [name_from(arguments) for _, name_from in self.limits]
        if len({name, *limits}) <= len(limits):
            raise ValueError(f"a call of {self._task} has {[name, *limits]}: {SAME_NAMES}")
        return Names(name, slots, limits, self._unique[1](arguments) if self._unique else "")

    def _named_by(self, said: Any) -> tuple[str, Callable[[Mapping[str, Any]], str]]:
        """Return the template of the names, and what makes a name of a call's arguments."""
        if isinstance(said, str):
            return said, NameTemplate(said, self.signature).fill_from
        if isinstance(said, ArgumentNames):
            said.check(self.signature)
            template = ":".join([self._task, *(f"{{{field}}}" for field in said.names)])
            return template, partial(said.name_from, self._task)
        if said is None:
            return f"{self._task}:{{arguments}}", partial(digest_name, self._task)
        return f"{self._task}:{{lock_name}}", lambda arguments: checked_name(said(**arguments))


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
