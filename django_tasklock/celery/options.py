"""A task's lock options, checked when its class is made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from celery import Task

from ..arguments import checked_ttl, checked_wait
from ..exceptions import InvalidLockConfig
from ..guards import StatusGuard
from ..naming import ArgumentNames, NameTemplate

__all__ = ["OPTIONS", "PER_CALL", "body_signature", "check_call", "check_options"]

OPTIONS = {
    "lock_name": None,
    "lock_ttl": None,
    "lock_wait": 0,
    "lock_renew": True,
    "lock_store": "default",
    "lock_retry_for": 3600,
    "lock_max_attempts": 5,
    "on_conflict": "skip",
    "on_outage": "retry",
    "unique_while": None,
    "unique_for": 3600,
    "on_duplicate": "return",
    "guard": None,
}
"""every option, with its default"""

CHOICES = {
    "on_conflict": ("skip", "retry", "raise", "coalesce"),
    "on_outage": ("retry", "raise", "run"),
    "unique_while": (None, "queued", "unfinished"),
    "on_duplicate": ("return", "raise"),
}

PER_CALL = ("unique_for", "on_duplicate")
"""options that a call may give for itself; by the others a worker goes, who knows the task alone"""

_OF_CELERY = frozenset(dir(Task))  # To ask Task itself for its app would bind it, for all tasks.


def body_signature(task: type[Task]) -> inspect.Signature | None:
    """The signature of a task's body as its callers see it; None for a class without a body."""
    run = inspect.getattr_static(task, "run")
    if run is inspect.getattr_static(Task, "run"):
        return None
    if isinstance(run, staticmethod):
        return inspect.signature(run.__func__)
    signature = inspect.signature(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def check_options(task: type[Task]) -> None:
    """Raise `InvalidLockConfig` for an option that does not exist or cannot be meant."""
    for attribute in vars(task):
        _check_known(task, attribute)
    value = {name: getattr(task, name) for name in OPTIONS}
    try:
        if value["lock_ttl"] is not None:
            checked_ttl(value["lock_ttl"])
        checked_wait(value["lock_wait"])
        checked_wait(value["lock_retry_for"])
        checked_ttl(value["unique_for"])
        _check_name(task, value["lock_name"])
    except (TypeError, ValueError) as error:
        raise _wrong(task, str(error)) from error
    for name in CHOICES:
        _check_choice(task, name, value[name])
    if not isinstance(value["lock_renew"], bool):
        raise _wrong(task, f"lock_renew is a bool, not {value['lock_renew']!r}")
    if not isinstance(value["lock_store"], str):
        raise _wrong(task, f"lock_store is an alias, not {value['lock_store']!r}")
    attempts = value["lock_max_attempts"]
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise _wrong(task, f"lock_max_attempts is a number of runs >= 1, not {attempts!r}")
    _check_guard(task, value["guard"])


def _check_known(task: type[Task], attribute: str) -> None:
    if attribute in OPTIONS or attribute in _OF_CELERY or attribute.startswith("_"):
        return
    # Methods and properties may be called what they like.
    value = vars(task)[attribute]
    if callable(value) or isinstance(value, property | staticmethod | classmethod):
        return
    wrong = _misspelt(attribute)
    if wrong:
        raise _wrong(task, wrong)


def check_call(task: Any, options: Mapping[str, Any]) -> None:
    """Raise `InvalidLockConfig` for options of one call that would do nothing, or are wrong."""
    for option, value in options.items():
        if option in PER_CALL:
            if task.unique_while is None:
                raise _wrong(task, f"{option} says nothing: the task has no unique_while")
            _check_per_call(task, option, value)
        elif option in OPTIONS:
            raise _wrong(
                task,
                f"{option} is an option of the task, not of one call: a worker goes by it, which "
                f"knows the task alone. A call may give {' and '.join(PER_CALL)}",
            )
        else:
            wrong = _misspelt(option)
            # Stamps are options by their own name.
            if wrong and option not in (options.get("stamped_headers") or ()):
                raise _wrong(task, wrong)


def _check_per_call(task: Any, option: str, value: Any) -> None:
    if option in CHOICES:
        _check_choice(task, option, value)
        return
    try:
        checked_ttl(value)
    except (TypeError, ValueError) as error:
        raise _wrong(task, f"{option}: {error}") from error


def _check_choice(task: Any, option: str, value: Any) -> None:
    choices = CHOICES[option]
    if value not in choices:
        raise _wrong(task, f"{option} is one of {', '.join(map(str, choices))}, not {value!r}")


@lru_cache(maxsize=256)
def _misspelt(option: str) -> str | None:
    """What to say of a name that looks like an option of ours; None of one that does not."""
    meant = get_close_matches(option, OPTIONS, n=1, cutoff=0.75)
    if meant:
        return f"there is no option {option}; did you mean {meant[0]}?"
    if option.startswith(("lock_", "unique_")):
        return f"there is no option {option}; there are {', '.join(OPTIONS)}"
    return None


def _check_name(task: type[Task], name: Any) -> None:
    if name is None or (callable(name) and not isinstance(name, str)):
        return
    signature = body_signature(task)
    if isinstance(name, ArgumentNames):
        if signature is not None:
            name.check(signature)
    elif signature is not None:
        NameTemplate(name, signature)
    elif not isinstance(name, str):
        raise TypeError(f"lock_name is a template or a callable, not {name!r}")


def _check_guard(task: type[Task], guard: Any) -> None:
    if guard is None:
        return
    if not isinstance(guard, StatusGuard):
        raise _wrong(task, f"guard is a StatusGuard, not {guard!r}")
    signature = body_signature(task)
    if signature is None or guard.pk in signature.parameters:
        return
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        raise _wrong(task, f"its guard takes the key from {guard.pk!r}, which is no argument of it")


def _wrong(task: Any, message: str) -> InvalidLockConfig:
    return InvalidLockConfig(f"task {getattr(task, 'name', None) or task.__name__}: {message}")
