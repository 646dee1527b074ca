"""
System checks of the tasks of the project's Celery apps.

========  =======  ============================================================================
id        level    condition
========  =======  ============================================================================
``E003``  error    a task's guard names a model or a field that does not exist, or cannot claim a
                   row with one UPDATE
``E004``  error    a task's ``lock_store`` is no alias of the setting
``E005``  error    a field of a task's guard cannot hold a fence, or one of its statuses
``E006``  error    a task's lock is to last, or to cool, for longer than its store can
``E007``  error    a task cannot be made: a worker does not start, and its calls fail
``E008``  error    a task that is no `LockedTask` has options of ours, which nothing reads
``E009``  error    a task has ``on_conflict="join"``, and a result backend that keeps nothing
``W005``  warning  the tasks of an app cannot be imported
``W009``  warning  a task has a guard and no ``acks_late``
``W010``  warning  a guarded task may run without its lock, and its row has no fence
``W013``  warning  a task's guard claims rows that another task's guard claims too
========  =======  ============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Any

from celery.app.annotations import resolve_all
from django.core import checks

from .._compat.celery import active_apps, is_of_function, is_of_project
from .._values.words import printable
from ..checks import Found, check_lock, message
from ..conf import configured_stores
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..guards import StatusGuard
from ..stores import stores
from .for_operators import all_tasks, locked_tasks, not_loaded
from .options import OPTIONS
from .task import LockedTask

SAY_WHOSE = (
    "Give each guard a filter that says whose a row is: otherwise nobody knows which of the tasks "
    "a row needs that is lost, or waits. If either may do the work, silence this check."
)


def check_tasks() -> list[checks.CheckMessage]:
    """Load the tasks, as workers do, and return what is wrong with them. Their options were checked
    when they were made."""
    of_project = not_loaded(lambda: filter(is_of_project, active_apps()))
    messages = [_not_loaded(*each) for each in of_project]
    with suppress(InvalidLockConfig):  # The check of the stores reports it.
        configured_stores()
        for task in all_tasks().values():
            is_ours = isinstance(task, LockedTask)
            found = _check_task(task) if is_ours else _check_other(task)
            for identity, what, hint in dict.fromkeys(found):  # Its limits have the lock's ttl.
                messages.append(message(identity, f"task {task.name}: {what}", hint))
        messages += _same_rows()
    return messages


def _same_rows() -> Iterator[checks.CheckMessage]:
    """Tasks that claim, as far as that is certain, the same rows as others before them."""
    seen: dict[str, StatusGuard] = {}
    claims = attrgetter("label", "field", "filter", "exclude")
    guarded = {name: task.guard for name, task in locked_tasks().items() if task.guard}
    for name, guard in guarded.items():
        mine = {*guard.source, guard.to}
        same = (other for other, its in seen.items() if claims(its) == claims(guard))
        if others := [one for one in same if mine & {*seen[one].source, seen[one].to}]:
            what = f"task {name}: its guard claims rows that {', '.join(others)} claims too."
            yield message("W013", what, SAY_WHOSE)
        seen[name] = guard


def _not_loaded(app: Any, imported: bool, error: Exception) -> checks.CheckMessage:
    what = "a task cannot be made" if imported else "its tasks cannot be imported"
    hint = "Correct it. A worker of this app fails with this error, and shows where."
    said = f"Celery app {app.main!r}: {what}: {type(error).__name__}: {printable(error)}"
    # The class of a task is made, and checked, when its module is imported.
    is_of_task = imported or isinstance(error, InvalidLockConfig)
    return message("E007" if is_of_task else "W005", said, hint)


def _check_task(task: LockedTask) -> Iterator[Found]:
    if task.config_error:
        hint = "Correct the task. Until you do, no worker starts, and its calls raise this error."
        yield "E007", task.config_error, hint
        return
    yield from check_lock(task.guard, task.how(), "lock_store")
    if task.on_conflict == "join" and not task.shows_results:
        yield "E009", 'on_conflict="join" needs a result_backend that keeps its results.', None
    if task.guard and not (task.acks_late or task.says_acks_late):
        what = (
            "it has a guard and no acks_late: if its worker is killed, its message is lost, "
            f"and its row stays {task.guard.to!r}."
        )
        hint = (
            "Set acks_late=True on the task, and its message comes back. To accept the loss, "
            "and to silence this for the task, set acks_late=False."
        )
        yield "W009", what, hint
    with suppress(InvalidLockConfig, StoreUnavailable):  # The checks of the stores report it.
        store = stores[task.lock_store]
        for limit in task.lock_limits:
            yield from check_lock(None, task.how_under(limit), "lock_store")
        alone = callable(task.on_conflict) or "run" in (task.on_conflict, task.on_outage)
        if alone and task.guard and not (task.guard.holds_marks and store.supports_fence):
            what = "it may run without its lock, and no fence keeps its row from the next run."
            hint = "Give its guard a BigIntegerField as fence_field, and a lock_store with fences."
            yield "W010", what, hint


def _check_other(task: Any) -> Iterator[Found]:
    """Options of a task that is none of ours, which no base of it has: nothing reads them.

    Those that ``task_annotations`` give to all tasks are not meant for this one.
    """
    given, *bases = (vars(each) for each in type(task).__mro__)
    # A class has attributes for its own methods, which may read one with such a name.
    if is_of_function(task) or isinstance(given.get("guard"), StatusGuard):
        known = {*chain(*bases, *resolve_all(task.app.annotations, type(task)))}
        if unread := [name for name in OPTIONS if name in given and name not in known]:
            what = f"no base class of it reads {', '.join(unread)}: it runs without a lock."
            hint = (
                "Add base=LockedTask (from django_tasklock.celery import LockedTask), or derive "
                "the task's own base class from LockedTask. If your own code reads it, declare it "
                f"in a base class: {unread[0]} = None."
            )
            yield "E008", what, hint
