"""The checks of a locked task's options: when its class is made, and when a call is sent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

from asgiref.sync import iscoroutinefunction
from celery import Task

from .._compat.celery import makes_all_tasks
from .._engine.names import check_argument
from .._values.signatures import is_generator, signature_of, taken_by
from ..exceptions import InvalidLockConfig
from .conflicts import CONFLICTS
from .options import OPTIONS, SAME_NAMES, Naming, TaskOptions

# What says how an option's values are checked.
HINTS = inspect.get_annotations(TaskOptions, eval_str=True)

# Options that one call may give. The others must be the same for all calls, and for their runs.
PER_CALL = ("unique_for", "on_duplicate")
# Those that may be functions of the project's; `CONFLICT` gets the holder first.
CONFLICT = "on_conflict"
FUNCTIONS = ("lock_name", "lock_slots", "unique_name", CONFLICT)

_OF_CELERY = frozenset(dir(Task))  # Not getattr: it would bind Task to an app.
_OURS = ("lock_", "unique_", "debounce_", "until_commit")
# What `lock` and other libraries call an option; but these words may well be a project's own.
_NOT_MEANT = ("lock_name", "lock_store", "lock_limits")
_MEANT = {each.removeprefix("lock_"): each for each in OPTIONS if each not in _NOT_MEANT}
_MEANT["unique"] = 'unique_while="queued"'


def check_class(task: type[TaskOptions], locked: type[TaskOptions]) -> None:
    """Raise `InvalidLockConfig` if the class of a task is wrong: an option does not exist or has a
    wrong value, or the body cannot run under a lock, or ``locked`` (`LockedTask`) is not last.

    While Celery makes all tasks, the error becomes the task's own: it would reach the caller of
    another task, and the tasks behind this one would not be made.
    """
    try:
        # Bases that are tasks were checked when they were made.
        mixins = [each for each in task.__mro__[:-1] if not issubclass(each, Task)]
        for each in (task, *mixins):
            for name, value in vars(each).items():
                if each is task or name not in _MEANT:
                    _check_attribute(name, value)
        for option in OPTIONS:
            _check_value(option, getattr(task, option))
        if inspect.getattr_static(task, "run") is not inspect.getattr_static(Task, "run"):
            _check_arguments(task)
        _check_body(task)
        _check_together(task)
        _check_order(task, locked)
    except (TypeError, ValueError) as error:
        if not makes_all_tasks():
            raise _wrong(task, error) from error
        task.config_error = str(error)


def check_call(task: Any, options: Mapping[str, Any]) -> None:
    """Raise `InvalidLockConfig` for options of one call that have no effect, or are wrong."""
    task.check_made()
    # Celery passes each stamp as an option with its name.
    stamps = options.get("stamped_headers") or ()
    try:
        for option, value in options.items():
            if option in PER_CALL and task.unique_while is None:
                raise ValueError(f"{option} has no effect without unique_while. Leave it out")
            if option in PER_CALL:
                _check_value(option, value)
            elif option in OPTIONS:
                raise ValueError(
                    f"{option} is an option of the task: a call may give {' and '.join(PER_CALL)}. "
                    f"Give {option} to the task's decorator or class"
                )
            elif option not in stamps:
                _check_spelling(option)
    except (TypeError, ValueError) as error:
        raise _wrong(task, error) from error


def _check_value(option: str, value: Any) -> None:
    """Raise `TypeError` or `ValueError` for a value that an option cannot have."""
    (hint,) = get_args(HINTS[option])
    if get_origin(hint) is Annotated:
        get_args(hint)[1](value, option)
        return
    # The classes of conflicts say themselves which there are. A value may have no hash.
    is_conflict = option == CONFLICT
    choices = list(CONFLICTS) if is_conflict else get_args(hint)
    if not (value in choices or (is_conflict and callable(value))):
        raise ValueError(f"{option} must be one of {', '.join(map(str, choices))}, not {value!r}")


def _check_attribute(name: str, value: Any) -> None:
    # Methods and properties may have any name.
    free = callable(value) or hasattr(value, "__get__") or name.startswith("_")
    if not (free or name in OPTIONS or name in _OF_CELERY):
        _check_spelling(name, " An attribute of your own needs another name")


@lru_cache(maxsize=256)
def _check_spelling(option: str, mend: str = "") -> None:
    """Raise `ValueError` for a name that looks like one of `OPTIONS`."""
    meant = [_MEANT[option]] if option in _MEANT else get_close_matches(option, OPTIONS, 1, 0.75)
    if meant:
        raise ValueError(f"there is no option {option}; did you mean {meant[0]}?{mend}")
    if option.startswith(_OURS):
        known = ", ".join(OPTIONS)
        raise ValueError(f"there is no option {option}; there are {known}.{mend}")


def _check_arguments(task: Any) -> None:
    """Raise `TypeError` or `ValueError` for options that do not go with the body's arguments."""
    signature = Naming(task).signature
    if task.guard is not None:
        check_argument("guard", task.guard.pk, signature)
    parameters = signature.parameters.values()
    named = {each.name: None for each in parameters if each.kind is not each.VAR_KEYWORD}
    functions = {option: getattr(task, option) for option in FUNCTIONS}
    functions |= {f"lock_limits[{at}]": each.name for at, each in enumerate(task.lock_limits)}
    for option, value in functions.items():
        if callable(value):
            try:
                takes, first, given = signature_of(value), list[str](), named
                if option == CONFLICT:
                    first, given = ["the holder"], taken_by(value, named)
                # With further keywords, a call may have any argument.
                bind = takes.bind if len(named) == len(parameters) else takes.bind_partial
                bind(*first, **given)
            except TypeError as error:
                what = ", ".join([*first, *named]) or "no argument"
                mend = "Its parameters must have the names of the task's"
                raise TypeError(
                    f"{option} is called with {what} by name, without self: {error}. {mend}"
                ) from error


def _check_body(task: Any) -> None:
    """Raise `ValueError` for a body that cannot run under a lock."""
    body = object.__new__(task).run
    if iscoroutinefunction(body) or is_generator(body):
        raise ValueError(
            "its body is async or a generator, of which Celery runs nothing. Write a plain def, "
            "and call asyncio.run(...) or asgiref.sync.async_to_sync(...) in it"
        )


def _check_together(task: Any) -> None:
    """Raise `ValueError` for options that exclude each other, or need each other."""
    debounce, longest, replaces = task.debounce, task.debounce_max, task.on_conflict == "replace"
    names = [task.lock_name, *(each.name for each in task.lock_limits)]
    if any(names.count(name) > 1 for name in names):
        raise ValueError(SAME_NAMES)
    if task.lock_slots != 1 and task.guard is not None:
        raise ValueError(
            "its guard needs a lock that one run at a time holds: leave out lock_slots, and use "
            "lock_limits=[limit(name, N)]"
        )
    if task.on_loss == "stop" and not task.lock_renew:
        raise ValueError('on_loss="stop" needs lock_renew: only what renews a lease finds it lost')
    if task.lock_slots != 1 and task.unique_while == "unfinished":
        raise ValueError('with lock_slots several calls may run: use unique_while="queued"')
    others = task.guard, task.ignore_result, task.lock_slots != 1, task.lock_wait != 0
    if task.on_conflict == "join" and any(others):
        raise ValueError('with "join" leave out guard, ignore_result, lock_slots and lock_wait')
    if task.unique_name and task.unique_while != "queued":
        raise ValueError('unique_name needs unique_while="queued". Add it, or leave this out')
    if debounce and task.unique_while:
        raise ValueError("debounce and unique_while exclude each other: leave one out")
    if replaces and (task.unique_while or task.lock_slots != 1):
        raise ValueError('on_conflict="replace" goes with neither unique_while nor lock_slots')
    if longest and not (debounce or replaces):
        raise ValueError("debounce_max has no effect without debounce. Add it, or leave this out")
    if longest and longest < (debounce or 0):
        raise ValueError(f"debounce_max must be at least debounce, {debounce!r}, not {longest!r}")


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


def _wrong(task: Any, error: Exception) -> InvalidLockConfig:
    name = getattr(task, "name", None) or task.__name__
    return InvalidLockConfig(f"task {name}: {error}")
