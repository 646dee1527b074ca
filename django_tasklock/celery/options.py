"""The lock options of a task and of one call, and their checks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from celery import Task

from .._engine.names import ArgumentNames, NameTemplate
from .._values.arguments import checked_seconds, checked_ttl, checked_wait
from .._values.signatures import signature_of
from .._values.slots import checked_slots
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard

__all__ = ["OPTIONS", "PER_CALL", "body_signature", "check_call", "check_options", "check_order"]

OPTIONS = {
    "lock_name": None,
    "lock_slots": 1,
    "lock_ttl": None,
    "lock_wait": 0,
    "lock_renew": True,
    "lock_hold_at_least": 0,
    "lock_cooldown": 0,
    "lock_cooldown_after_error": 0,
    "lock_store": "default",
    "lock_retry_for": 3600,
    "lock_max_attempts": 5,
    "on_conflict": "skip",
    "on_outage": "retry",
    "unique_while": None,
    "unique_for": 3600,
    "on_duplicate": "return",
    "debounce": None,
    "debounce_max": None,
    "guard": None,
}
"""every option, with its default"""

COOLING_OPTIONS = ("lock_hold_at_least", "lock_cooldown", "lock_cooldown_after_error")

CHOICES = {
    "on_conflict": ("skip", "retry", "raise", "coalesce", "run"),
    "on_outage": ("retry", "raise", "run"),
    "unique_while": (None, "queued", "unfinished"),
    "on_duplicate": ("return", "raise"),
}

PER_CALL = ("unique_for", "on_duplicate")
"""options that one call may give. The others are used by workers, which know only the task's"""

_OF_CELERY = frozenset(dir(Task))  # Not getattr: it would bind Task to an app.


def body_signature(task: type[Task]) -> inspect.Signature | None:
    """Return the signature of a task's body as callers see it; None for a class without a body."""
    run = inspect.getattr_static(task, "run")
    if run is inspect.getattr_static(Task, "run"):
        return None
    if isinstance(run, staticmethod):
        return signature_of(run.__func__)
    signature = signature_of(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def check_options(task: type[Task]) -> None:
    """Raise `InvalidLockConfig` if a task's option does not exist or has a wrong value."""
    for each in (task, *_mixins_of(task)):
        for attribute, found in vars(each).items():
            _check_known(task, attribute, found)
    if task.Strategy != Task.Strategy:
        raise _error(
            task,
            "it has its own Strategy, as the tasks of celery-batches have: it is not called once "
            "for each message, so that no lock, conflict or requeue would apply to a message. "
            "Take the lock in its body, with lock(...), and leave out LockedTask",
        )
    value = {name: getattr(task, name) for name in OPTIONS}
    try:
        if value["lock_ttl"] is not None:
            checked_ttl(value["lock_ttl"])
        checked_wait(value["lock_wait"])
        checked_wait(value["lock_retry_for"])
        checked_ttl(value["unique_for"])
        for name in COOLING_OPTIONS:
            checked_seconds(name, value[name])
        _check_name(task, value["lock_name"])
        if callable(value["lock_slots"]):
            _check_called(task, "lock_slots", value["lock_slots"])
        else:
            checked_slots(value["lock_slots"])
    except (TypeError, ValueError) as error:
        raise _error(task, str(error)) from error
    for name in CHOICES:
        _check_choice(task, name, value[name])
    _check_debounce(task, value["debounce"], value["debounce_max"], value["unique_while"])
    if not isinstance(value["lock_renew"], bool):
        raise _error(task, f"lock_renew is a bool, not {value['lock_renew']!r}")
    if not isinstance(value["lock_store"], str):
        raise _error(task, f"lock_store is an alias, not {value['lock_store']!r}")
    attempts = value["lock_max_attempts"]
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise _error(task, f"lock_max_attempts is a number of runs >= 1, not {attempts!r}")
    _check_guard(task, value["guard"])
    if value["lock_slots"] != 1:
        _check_together(task, value)


def check_order(task: type[Task], locked: type[Task]) -> None:
    """Raise `InvalidLockConfig` if a class comes after ``locked``, which is `LockedTask`, and has
    what that has as well: Python would not use it, or call it later than the class expects."""
    order, ours = task.__mro__, locked.__mro__
    above = ours[: ours.index(Task)]
    names = {name for each in above for name in vars(each) if not name.startswith("_")}
    # Celery sets the second one on a class when it binds that to an app.
    names = (names | {"__call__"}) - {"abstract", "reject_on_worker_lost"}
    for each in order[order.index(locked) :]:
        own = [] if each in ours else sorted(names & vars(each).keys())
        if own:
            raise _error(
                task,
                f"{each.__name__} comes after LockedTask, and has its own {', '.join(own)}. "
                f"LockedTask comes last: class {task.__name__}({each.__name__}, LockedTask)",
            )


def _check_together(task: type[Task], value: Mapping[str, Any]) -> None:
    """Refuse what relies on a lock that one run alone holds."""
    if value["guard"] is not None:
        raise _error(
            task,
            "its guard needs a lock that one run at a time holds, so lock_slots is 1. To let only "
            "some of its runs work at once, use lock(..., slots=N) in the body",
        )
    if value["unique_while"] == "unfinished":
        raise _error(
            task, 'with lock_slots several calls may run, so unique_while is "queued" or None'
        )


def _mixins_of(task: type[Task]) -> list[type]:
    """Return the bases that are no tasks: those that are were checked when they were made."""
    return [each for each in task.__mro__ if each is not object and not issubclass(each, Task)]


def _check_known(task: type[Task], attribute: str, value: Any) -> None:
    if attribute in OPTIONS or attribute in _OF_CELERY or attribute.startswith("_"):
        return
    # Methods and properties may have any name.
    if callable(value) or isinstance(value, property | staticmethod | classmethod):
        return
    message = _misspelt(attribute)
    if message:
        raise _error(task, message)


def check_call(task: Any, options: Mapping[str, Any]) -> None:
    """Raise `InvalidLockConfig` for options of one call that have no effect, or are wrong."""
    for option, value in options.items():
        if option in PER_CALL:
            if task.unique_while is None:
                raise _error(task, f"{option} has no effect: the task has no unique_while")
            _check_per_call(task, option, value)
        elif option in OPTIONS:
            raise _error(
                task,
                f"{option} is an option of the task, not of one call: workers use the task's. "
                f"A call may give {' and '.join(PER_CALL)}",
            )
        else:
            message = _misspelt(option)
            # Celery passes each stamp as an option with the stamp's name.
            if message and option not in (options.get("stamped_headers") or ()):
                raise _error(task, message)


def _check_per_call(task: Any, option: str, value: Any) -> None:
    if option in CHOICES:
        _check_choice(task, option, value)
        return
    try:
        checked_ttl(value)
    except (TypeError, ValueError) as error:
        raise _error(task, f"{option}: {error}") from error


def _check_choice(task: Any, option: str, value: Any) -> None:
    choices = CHOICES[option]
    if value not in choices:
        raise _error(task, f"{option} is one of {', '.join(map(str, choices))}, not {value!r}")


@lru_cache(maxsize=256)
def _misspelt(option: str) -> str | None:
    """Return the error for a name that looks like one of `OPTIONS`; None if it does not."""
    meant = get_close_matches(option, OPTIONS, n=1, cutoff=0.75)
    if meant:
        return f"there is no option {option}; did you mean {meant[0]}?"
    if option.startswith(("lock_", "unique_", "debounce_")):
        return f"there is no option {option}; there are {', '.join(OPTIONS)}"
    return None


def _check_called(task: type[Task], option: str, function: Any) -> None:
    """Raise `TypeError` for a function that cannot be called with the arguments of the body."""
    signature = body_signature(task)
    if signature is None:
        return
    parameters = signature.parameters.values()
    named = {p.name: None for p in parameters if p.kind is not p.VAR_KEYWORD}
    try:
        takes = signature_of(function)
    except ValueError:
        return  # Python does not know what it takes, as of some that are written in C.
    try:
        # With further keywords, a call may have any argument.
        (takes.bind if len(named) == len(parameters) else takes.bind_partial)(**named)
    except TypeError as error:
        arguments = ", ".join(named) or "none"
        raise TypeError(
            f"{option} is called with the task's arguments by name ({arguments}), and without "
            f"self: {error}"
        ) from error


def _check_name(task: type[Task], name: Any) -> None:
    if name is None:
        return
    if callable(name) and not isinstance(name, str):
        _check_called(task, "lock_name", name)
        return
    signature = body_signature(task)
    if isinstance(name, ArgumentNames):
        if signature is not None:
            name.check(signature)
    elif signature is not None:
        NameTemplate(name, signature)
    elif not isinstance(name, str):
        raise TypeError(f"lock_name is a template or a callable, not {name!r}")


def _check_debounce(task: type[Task], debounce: Any, debounce_max: Any, unique_while: Any) -> None:
    for name, value in (("debounce", debounce), ("debounce_max", debounce_max)):
        try:
            if value is not None:
                checked_ttl(value)
        except (TypeError, ValueError) as error:
            raise _error(task, f"{name}: {error}") from error
    if debounce is None:
        if debounce_max is not None:
            raise _error(task, "debounce_max has no effect: the task has no debounce")
        return
    if debounce_max is not None and debounce_max < debounce:
        raise _error(task, f"debounce_max is at least debounce, {debounce!r}, not {debounce_max!r}")
    if unique_while is not None:
        raise _error(
            task,
            "debounce and unique_while exclude each other: of two calls the one runs the last, "
            "and the other sends the first",
        )
    expires = task.expires
    if isinstance(expires, int | float) and expires <= debounce:
        raise _error(
            task, f"its messages expire after {expires!r} s, before their debounce is over"
        )


def _check_guard(task: type[Task], guard: Any) -> None:
    if guard is None:
        return
    if not isinstance(guard, StatusGuard):
        raise _error(task, f"guard is a StatusGuard, not {guard!r}")
    signature = body_signature(task)
    if signature is None or guard.pk in signature.parameters:
        return
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        raise _error(
            task, f"its guard takes the key from {guard.pk!r}, which is not an argument of it"
        )


def _error(task: Any, message: str) -> InvalidLockConfig:
    return InvalidLockConfig(f"task {getattr(task, 'name', None) or task.__name__}: {message}")
