"""The lock options of a task and of one call, their checks, and the name that a call's lock has.

The attributes of `TaskOptions` are the defaults. `CHECKS` says what each option may be.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache, partial
from types import NoneType
from typing import Any, ClassVar, Literal

from asgiref.sync import iscoroutinefunction
from celery import Task
from django.utils.functional import cached_property

from .._compat.celery import WorkerTask, keeps_results, keeps_successes, makes_all_tasks
from .._engine.cooling import CoolingTimes, cooling_times
from .._engine.names import (
    ArgumentNames,
    NameTemplate,
    bound_arguments,
    check_argument,
    digest_name,
)
from .._engine.service import LockService
from .._values.arguments import checked_name, checked_seconds, checked_ttl, checked_wait
from .._values.signatures import is_generator, signature_of
from .._values.slots import checked_slots
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard
from .conflict import Conflict

# Gets the value of an option and its name; raises `TypeError` or `ValueError`.
Check = Callable[[Any, str], object]


def _is(what: str, fits: Callable[[Any], bool]) -> Check:
    def check(value: Any, option: str) -> None:
        if not fits(value):
            raise ValueError(f"{option} must be {what}, not {value!r}")

    return check


def _one_of(*choices: str | None) -> Check:
    return _is(f"one of {', '.join(map(str, choices))}", lambda value: value in choices)


def _a(what: str, *kinds: Any) -> Check:
    return _is(what, lambda value: isinstance(value, kinds))


def _ttl_or_none(value: Any, option: str) -> float | None:
    return None if value is None else checked_ttl(value, option)


# The options for how long a lock stays taken, in the order of `CoolingTimes`.
COOLING = ("lock_hold_at_least", "lock_cooldown", "lock_cooldown_after_error")
CHECKS: dict[str, Check] = {
    "lock_name": _a("a template, by(...) or a callable", str, ArgumentNames, Callable, NoneType),
    "lock_slots": lambda value, option: callable(value) or checked_slots(value, option),
    "lock_ttl": _ttl_or_none,
    "lock_wait": checked_wait,
    "lock_renew": _a("a bool", bool),
    **dict.fromkeys(COOLING, lambda value, option: checked_seconds(option, value)),
    "lock_store": _a("an alias", str),
    "lock_retry_for": checked_wait,
    "lock_max_attempts": _is("a number of runs >= 1", lambda runs: type(runs) is int and runs > 0),
    "on_conflict": _one_of("skip", "retry", "raise", "coalesce", "run"),
    "on_outage": _one_of("retry", "raise", "run"),
    "unique_while": _one_of(None, "queued", "unfinished"),
    "unique_for": checked_ttl,
    "on_duplicate": _one_of("return", "raise"),
    "debounce": _ttl_or_none,
    "debounce_max": _ttl_or_none,
    "guard": _a("a StatusGuard", StatusGuard, NoneType),
}  # fmt: skip
# The names of all options.
OPTIONS = tuple(CHECKS)

# Options that one call may give. The others are used by workers, which know only the task's.
PER_CALL = ("unique_for", "on_duplicate")

# Names that other packages have for what we have, with ours.
ELSEWHERE = {
    "timeout": "lock_ttl", "lock_timeout": "lock_ttl", "blocking_timeout": "lock_wait",
    "lock_expiry": "unique_for, or lock_ttl for the lease", "once": "unique_while",
    "unique_on": "lock_name",
}  # fmt: skip

_OF_CELERY = frozenset(dir(Task))  # Not getattr: it would bind Task to an app.
_OURS = ("lock_", "unique_", "debounce_")


class Naming:
    """The arguments, the lock's name and its slots for each call of one task.

    ``template`` is the lock's name with fields in the place of all values: the same for every call.
    ``arguments_of`` returns a call's arguments by name, with defaults, and ``name_from`` makes the
    lock's name of those.
    """

    template: str
    name_from: Callable[[Mapping[str, Any]], str]

    def __init__(self, task: Task) -> None:
        cls: Any = type(task)  # A function that is an attribute would be bound to the task.
        signature = body_signature(cls)
        assert signature is not None
        self.parameters = signature.parameters
        self._task, self._slots, name = str(task.name), cls.lock_slots, cls.lock_name
        # Whether a function of the project's names the lock, or says its slots.
        self.calls_project = any(map(callable, (cls.lock_slots, name)))
        # Of a call's positional and keyword arguments. Raises `TypeError` as the call does.
        self.arguments_of = partial(bound_arguments, signature)
        if isinstance(name, str):
            self.template, self.name_from = name, NameTemplate(name, signature).fill_from
        elif isinstance(name, ArgumentNames):
            self.template = ":".join([self._task, *(f"{{{field}}}" for field in name.names)])
            self.name_from = partial(name.name_from, self._task)
        elif name is None:
            self.template = f"{self._task}:{{arguments}}"
            self.name_from = partial(digest_name, self._task)
        else:
            self.template = f"{self._task}:{{lock_name}}"
            self.name_from = lambda arguments: checked_name(name(**arguments))

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
        """Return the name of the lock for a call with these arguments, and how many calls with it
        may run at once.

        Raises `TypeError` or `ValueError` if the arguments do not give a valid name, or no number
        of slots, and what a function of the project's raises.
        """
        arguments = self.arguments_of(args, kwargs)
        name, slots = self.name_from(arguments), self._slots
        if callable(slots):
            slots = checked_slots(slots(**arguments), f"lock_slots of the task {self._task}")
        return name, slots


class TaskOptions(WorkerTask):
    """The options of a locked task, and what is made of them once. See `LockedTask`."""

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
    # What `check_class` found while Celery made all tasks; "": nothing.
    config_error: ClassVar[str] = ""

    def check_made(self) -> None:
        """Raise `InvalidLockConfig` if an option is wrong: the task cannot be used."""
        if self.config_error:
            raise InvalidLockConfig(self.config_error)

    @cached_property
    def naming(self) -> Naming:
        """How the calls of this task name their locks. Raises as `check_made` does."""
        self.check_made()
        return Naming(self)

    @property
    def conflict(self) -> Conflict:
        """What ``on_conflict`` says: `LockedTask` knows the classes."""
        raise NotImplementedError

    @cached_property
    def locks(self) -> LockService:
        """The service of this task's store."""
        return LockService(self.lock_store)

    @cached_property
    def cooling_times(self) -> CoolingTimes | None:
        """How long the lock stays taken after a run that has ended; None: not at all."""
        return cooling_times(*(getattr(self, option) for option in COOLING))

    @cached_property
    def keeps_results(self) -> bool:
        """Whether the result backend knows how a call has ended, also after a redelivery began."""
        backend = self.backend
        overwritten = self.track_started and not keeps_successes(backend)
        return not self.ignore_result and not overwritten and keeps_results(backend)


def check_class(task: type[TaskOptions], locked: type[TaskOptions]) -> None:
    """Raise `InvalidLockConfig` if the class of a task is wrong: an option does not exist or has a
    wrong value, or the body cannot run under a lock, or ``locked`` (`LockedTask`) is not last.

    While Celery makes all tasks, the error becomes the task's own: it would reach the caller of
    another task, and the tasks behind this one would not be made.
    """
    try:
        with _of(task):
            # Bases that are tasks were checked when they were made.
            mixins = [each for each in task.__mro__[:-1] if not issubclass(each, Task)]
            signature = body_signature(task)
            for each in (task, *mixins):
                for name, value in vars(each).items():
                    _check_attribute(name, value, own=each is task)
            for option, check in CHECKS.items():
                check(getattr(task, option), option)
            if signature is not None:
                _check_arguments(task, signature)
            _check_together(task)
            _check_order(task, locked)
    except InvalidLockConfig as error:
        if not makes_all_tasks():
            raise
        task.config_error = str(error)


def _check_order(task: type[Task], locked: type[Task]) -> None:
    """Raise `ValueError` if a class comes after ``locked``, which is `LockedTask`, and has what
    `LockedTask` has: Python would not use it, or call it later than the class expects."""
    order, ours = task.__mro__, locked.__mro__
    above = ours[: ours.index(Task)]
    names = {name for each in above for name in vars(each) if not name.startswith("_")}
    # Celery sets the second one on a class when it binds that to an app.
    names = (names | {"__call__"}) - {"abstract", "reject_on_worker_lost"}
    for each in order[order.index(locked) :]:
        if each not in ours and (own := sorted(names & vars(each).keys())):
            what = f"{each.__name__} comes after LockedTask, and has its own {', '.join(own)}"
            right = f"class {task.__name__}({each.__name__}, LockedTask)"
            raise ValueError(f"{what}. LockedTask comes last: {right}")


def check_call(task: Any, options: Mapping[str, Any]) -> None:
    """Raise `InvalidLockConfig` for options of one call that have no effect, or are wrong."""
    task.check_made()
    # The first is kombu's, for the sending. Celery passes each stamp as an option with its name.
    others = ("timeout", *(options.get("stamped_headers") or ()))
    with _of(task):
        for option, value in options.items():
            if option in PER_CALL:
                if task.unique_while is None:
                    raise ValueError(
                        f"{option} has no effect: the task has no unique_while. Leave it out"
                    )
                CHECKS[option](value, option)
            elif option in CHECKS:
                what = (
                    f"{option} is an option of the task: a call may give {' and '.join(PER_CALL)}"
                )
                raise ValueError(f"{what}. Give {option} to the task's decorator or class")
            elif option not in others and (message := _misspelt(option)):
                raise ValueError(message)


def _check_attribute(name: str, value: Any, *, own: bool) -> None:
    # Methods and properties may have any name.
    free = callable(value) or hasattr(value, "__get__") or name.startswith("_")
    # A word such as "timeout" may be the project's own, if it is no plain value or of a mixin.
    plain = own and isinstance(value, int | float | str | dict | list | tuple)
    free = free or (name in ELSEWHERE and not name.startswith(_OURS) and not plain)
    if not (free or name in CHECKS or name in _OF_CELERY) and (message := _misspelt(name)):
        raise ValueError(f"{message} An attribute of your own needs another name")


@lru_cache(maxsize=256)
def _misspelt(option: str) -> str | None:
    """Return the error for a name that looks like one of `OPTIONS`; None if it does not."""
    meant = ELSEWHERE.get(option) or next(iter(get_close_matches(option, OPTIONS, 1, 0.75)), None)
    if meant:
        return f"there is no option {option}; did you mean {meant}?"
    known = f"there is no option {option}; there are {', '.join(OPTIONS)}."
    return known if option.startswith(_OURS) else None


def _check_arguments(task: Any, signature: inspect.Signature) -> None:
    """Raise `TypeError` or `ValueError` for options that do not go with the body's arguments."""
    if isinstance(task.lock_name, str):
        NameTemplate(task.lock_name, signature)
    elif isinstance(task.lock_name, ArgumentNames):
        task.lock_name.check(signature)
    if task.guard is not None:
        check_argument("guard", task.guard.pk, signature)
    parameters = signature.parameters.values()
    named = {each.name: None for each in parameters if each.kind is not each.VAR_KEYWORD}
    for option, value in ("lock_name", task.lock_name), ("lock_slots", task.lock_slots):
        if callable(value):
            try:
                takes = signature_of(value)
                # With further keywords, a call may have any argument.
                (takes.bind if len(named) == len(parameters) else takes.bind_partial)(**named)
            except TypeError as error:
                what = f"called with {', '.join(named) or 'no argument'} by name, without self"
                mend = "Its parameters must have the names of the task's"
                raise TypeError(f"{option} is {what}: {error}. {mend}") from error


def _check_together(task: Any) -> None:
    """Raise `ValueError` for a body that cannot run under a lock, and for options that exclude each
    other, or need each other."""
    run = inspect.getattr_static(task, "run")
    body = run.__func__ if isinstance(run, staticmethod) else run
    several, debounce, longest = task.lock_slots != 1, task.debounce, task.debounce_max
    wrong = {
        "its own Strategy, as in celery-batches, calls it once for many messages. Leave out "
        "LockedTask, and use lock(...) in the body": task.Strategy != Task.Strategy,
        "its body is async or a generator, of which Celery runs nothing. Write a plain def, and "
        "call asyncio.run(...) or asgiref.sync.async_to_sync(...) in it":
            iscoroutinefunction(body) or is_generator(body),
        "its guard needs a lock that one run at a time holds: leave out lock_slots, and use "
        "lock(..., slots=N) in the body": several and task.guard is not None,
        'with lock_slots several calls may run: use unique_while="queued"':
            several and task.unique_while == "unfinished",
        "debounce_max has no effect: the task has no debounce. Add one, or leave debounce_max out":
            longest and not debounce,
        f"debounce_max must be at least debounce, {debounce!r}, not {longest!r}":
            longest and debounce and longest < debounce,
        "debounce and unique_while exclude each other: leave one out":
            debounce and task.unique_while,
    }  # fmt: skip
    for message, is_so in wrong.items():
        if is_so:
            raise ValueError(message)


def body_signature(task: type[Task]) -> inspect.Signature | None:
    """Return the signature of a task's body as callers see it; None for a class without a body."""
    run = inspect.getattr_static(task, "run")
    if run is inspect.getattr_static(Task, "run"):
        return None
    if isinstance(run, staticmethod):
        return signature_of(run.__func__)
    signature = signature_of(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


@contextmanager
def _of(task: Any) -> Iterator[None]:
    """Raise what a check raises as the error of this task."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name = getattr(task, "name", None) or task.__name__
        raise InvalidLockConfig(f"task {name}: {error}") from error
