"""
The tasks of the project's Celery apps: loaded as a worker does, checked, explained to operators.

========  =======  ============================================================================
id        level    condition
========  =======  ============================================================================
``E003``  error    a task's guard names a model or a field that does not exist
``E004``  error    a task's ``lock_store`` is no alias of the setting
``E005``  error    the ``fence_field`` of a task's guard cannot hold a fence
``E006``  error    a task's lock is to cool, and its store cannot do that
``E007``  error    a task cannot be made: a worker does not start, and its calls fail
``E008``  error    a task that is no `LockedTask` has options that nothing reads: ours, or those of
                   celery-once and celery-singleton
``W004``  warning  with renewal off, a lease ends before the task's time limit, or the task has
                   no time limit
``W005``  warning  the tasks of an app cannot be imported
``W009``  warning  a task has a guard and no ``acks_late``
========  =======  ============================================================================
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from celery import current_app
from celery.app.annotations import resolve_all
from django.core import checks
from django.urls import get_script_prefix, set_script_prefix

from .._compat.celery import (
    SKIP_CHECKS,
    active_apps,
    is_of_function,
    is_of_project,
    made_tasks,
    make_tasks,
)
from .._values.lock_info import LockInfo
from .._values.words import printable
from ..checks import check_app
from ..conf import configured_stores
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..guards import StatusGuard
from ..operators.reservations import key_of
from ..operators.work import Explanation
from ..stores import stores
from .options import OPTIONS, body_signature
from .task import LockedTask
from .unique import is_same_job

__all__ = [
    "GuardedTask", "check_tasks", "duplicate_of", "explain_call", "guarded_tasks", "load_tasks",
    "locked_tasks",
]  # fmt: skip

# Two values for each argument except the key. If they give two names for one row, its lock's name
# cannot be known from the row.
PROBES = ("1", "2")

# Options of other packages, with the base classes that read them.
PEERS = {
    "once": "QueueOnce of celery-once", "unique_on": "Singleton of celery-singleton",
    "lock_expiry": "Singleton of celery-singleton",
}  # fmt: skip

_loading = threading.RLock()


def load_tasks() -> None:
    """Load the tasks of all apps, as workers do.

    Raises what the import of a module raises, and the error of a task that cannot be made.
    """
    for step in (_import_tasks, make_tasks):
        for app in (*active_apps(), current_app):
            step(app)


def locked_tasks() -> dict[str, LockedTask]:
    """Return the locked tasks of all apps, by name. Of those with one name, that of the current
    app.

    In a thread, for example of a web server, the current app is the project's only if the project
    made it the default. So the other apps are searched as well.
    """
    return {name: task for name, task in _all_tasks().items() if isinstance(task, LockedTask)}


def _all_tasks() -> dict[str, Any]:
    apps = (*active_apps(), current_app)
    return dict(sorted({task.name: task for app in apps for task in made_tasks(app)}.items()))


def check_tasks() -> list[checks.CheckMessage]:
    """Return what is wrong with the tasks. Their options were checked when they were made."""
    apps = [app for app in active_apps() if is_of_project(app)]
    messages = [*_load(apps)] if apps else check_app()
    with suppress(InvalidLockConfig):  # The check of the stores reports it.
        configured = configured_stores()
        for task in _all_tasks().values():
            if isinstance(task, LockedTask):
                messages += _check_task(task, configured)
            else:
                messages += _check_other(task)
    return messages


def _load(apps: list[Any]) -> Iterator[checks.CheckMessage]:
    for step, what in (
        # First those of all apps: a shared task that is imported after an app was made is made at
        # once, and its error would end the import.
        (_import_tasks, "its tasks cannot be imported"), (make_tasks, "a task cannot be made"),
    ):  # fmt: skip
        for app in [*apps]:
            try:
                step(app)
            except Exception as error:
                apps.remove(app)
                said = (
                    f"Celery app {app.main!r}: {what}: {type(error).__name__}: {printable(error)}"
                )
                hint = "Correct it. A worker of this app fails with this error, and shows where."
                # The class of a task is made, and checked, when its module is imported.
                if step is make_tasks or isinstance(error, InvalidLockConfig):
                    yield checks.Error(said, hint=hint, id="django_tasklock.E007")
                else:
                    yield checks.Warning(said, hint=hint, id="django_tasklock.W005")


def _import_tasks(app: Any) -> None:
    # Without Celery's Django checks: this may be called by one of those.
    with _loading:
        before, prefix = os.environ.get(SKIP_CHECKS, ""), get_script_prefix()
        os.environ[SKIP_CHECKS] = "1"
        try:
            app.loader.import_default_modules()
        finally:
            set_script_prefix(prefix)  # `django.setup` overwrites the request's.
            os.environ[SKIP_CHECKS] = before  # To Celery "" is as good as none.


def _check_task(task: LockedTask, configured: Mapping[str, Any]) -> Iterator[checks.CheckMessage]:
    if task.config_error:
        hint = "Correct the task. Until you do, no worker starts, and its calls raise this error."
        yield checks.Error(task.config_error, hint=hint, id="django_tasklock.E007")
        return
    if task.guard is not None:
        try:
            if problem := task.guard.fence_trouble():
                yield _said(task, problem, id="django_tasklock.E005")
        except InvalidLockConfig as wrong:  # Of its model or its fields.
            hint = "Correct the guard; or add the field to the model, and migrate."
            yield _said(task, wrong, hint, id="django_tasklock.E003")
        if not (task.acks_late or task.says_acks_late):
            what = (
                "it has a guard and no acks_late: if its worker is killed, its message is lost, "
                f"and its row stays {task.guard.to!r}."
            )
            hint = (
                "Set acks_late=True on the task, and its message comes back. To accept the loss, "
                "and to silence this for the task, set acks_late=False."
            )
            yield _said(task, what, hint, id="django_tasklock.W009")
    if task.lock_store not in configured:
        known = ", ".join(map(repr, configured)) or "no alias"
        hint = f"Correct lock_store, or add the store to TASKLOCK, which has {known}."
        what = f"there is no lock store {task.lock_store!r}"
        yield _said(task, what, hint, id="django_tasklock.E004")
        return
    with suppress(InvalidLockConfig, StoreUnavailable):  # The checks of the stores report it.
        store = stores[task.lock_store]
        try:
            if task.cooling_times is not None:
                task.cooling_times.check(store)
        except InvalidLockConfig as wrong:
            yield _said(task, wrong, id="django_tasklock.E006")
    ttl = configured[task.lock_store].ttl if task.lock_ttl is None else task.lock_ttl
    limit = task.time_limit or task.app.conf.task_time_limit
    if not task.lock_renew and (limit is None or ttl < limit):
        runs = f"may run for {limit} s" if limit else "has no time limit"
        what = f"its lease lasts {ttl:g} s and is not renewed, and the task {runs}."
        hint = "Leave lock_renew on, or give the task a time_limit of at most lock_ttl."
        yield _said(task, what, hint, id="django_tasklock.W004")


def _check_other(task: Any) -> Iterator[checks.CheckMessage]:
    """Options of a task that is none of ours, which no base of it has: nothing reads them.

    Those that ``task_annotations`` give to all tasks are not meant for this one.
    """
    given, *bases = (vars(each) for each in type(task).__mro__)
    unread = [name for name in (*OPTIONS, *PEERS) if name in given]
    # A class has attributes for its own methods, which may read one with such a name.
    if not unread or not (is_of_function(task) or isinstance(given.get("guard"), StatusGuard)):
        return
    known = {*chain(*bases, *resolve_all(task.app.annotations, type(task)))}
    if unread := [name for name in unread if name not in known]:
        what = f"no base class of it reads {', '.join(unread)}: it runs without a lock."
        hint = (
            "Add base=LockedTask (from django_tasklock.celery import LockedTask), or derive the "
            "task's own base class from LockedTask."
        )
        if peer := next((PEERS[name] for name in unread if name in PEERS), None):
            hint = f"Add its base, {peer}; or base=LockedTask, with unique_while."
        hint += f" If your own code reads it, declare it in a base class: {unread[0]} = None."
        yield _said(task, what, hint, id="django_tasklock.E008")


def _said(task: Any, what: object, hint: str | None = None, *, id: str) -> checks.CheckMessage:
    kind = checks.Error if id.startswith("django_tasklock.E") else checks.Warning
    return kind(f"task {task.name}: {what}", hint=hint, id=id)


# ---------------------------------------------------------------------------- for operators


def explain_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation | None:
    """Explain a call of a task. Returns None if there is no such locked task."""
    task = locked_tasks().get(name)
    if task is None:
        return None
    lock_name = type(task).lock_name
    said = getattr(lock_name, "__qualname__", repr(lock_name))
    why = f"the task's lock_name is {said}, with the call's arguments"
    if lock_name is None:
        why = "the task has no lock_name: its own name and a digest of the call's arguments"
    options = {option: getattr(type(task), option) for option in OPTIONS}
    own = {key: value for key, value in options.items() if value != getattr(LockedTask, key)}
    naming = task.naming
    arguments, slots = naming.arguments_of(args, kwargs), naming.slots_of(args, kwargs)
    return Explanation(task, naming.name_from(arguments), why, arguments, slots, own)


def duplicate_of(explanation: Explanation) -> str | LockInfo | None:
    """Return the task id or the lease of which the explained call would be a duplicate now, or
    None. Raises `StoreUnavailable`."""
    task, name = explanation.task, explanation.name
    if task.unique_while is None:
        return None
    store = task.locks.store
    other: str | None = store.get_note(key_of(str(task.name), name))
    if other is not None or task.unique_while != "unfinished":
        return other
    holder: LockInfo | None = store.find(name)
    return holder if holder is not None and is_same_job(task, holder) else None


def guarded_tasks() -> Iterator[GuardedTask]:
    """Yield every task that has a guard, by name."""
    for task in locked_tasks().values():
        if task.guard is not None and not task.config_error:
            yield GuardedTask(task, task.guard)


class GuardedTask:
    """One guarded task: the names of its rows' locks, and how to send it for a row."""

    def __init__(self, task: LockedTask, guard: StatusGuard) -> None:
        self._task, self.guard = task, guard
        self.task, self.store = str(task.name), task.lock_store
        signature = body_signature(type(task))
        assert signature is not None
        # The name of ``**kwargs`` stands for any other argument.
        self._others = [name for name in signature.parameters if name != guard.pk]
        first = next(iter(signature.parameters.values()))
        self._by_place = first.name == guard.pk and first.kind is first.POSITIONAL_ONLY

    def names_of(self, pk: Any) -> Sequence[str]:
        """Return the names that a row's lock may have; none if the key alone does not give them."""
        names: list[str] = []
        for key in (pk, str(pk)):  # Callers pass it as the database has it, or as text.
            found = {self._name(key, probe) for probe in PROBES}
            if len(found) > 1:
                return ()
            names += found - {""}
        return tuple(dict.fromkeys(names))

    def _name(self, key: Any, probe: str) -> str:
        try:
            arguments = {**dict.fromkeys(self._others, probe), self.guard.pk: key}
            return self._task.naming.name_from(arguments)
        except Exception:
            return ""  # The project's own function failed: there is no such lock.

    def send(self, pk: Any) -> str | None:
        """Send the task for the row, and return the message's task id.

        None for a class of the task whose ``apply_async`` returns no result. Raises `TypeError` if
        the task needs more than the key.
        """
        args, kwargs = ((pk,), {}) if self._by_place else ((), {self.guard.pk: pk})
        # Celery's own check lets positional-only parameters pass, and is off with ``typing=False``.
        self._task.naming.arguments_of(args, kwargs)
        # Also if another message is reserved: it may be lost, and the guard lets only one work.
        return getattr(self._task.send_anyway(args, kwargs), "id", None)
