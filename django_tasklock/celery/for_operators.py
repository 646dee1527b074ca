"""The tasks of the project's Celery apps, loaded as a worker does; and what operators ask of them.

Which have a guard, what a call would do about its lock, and whether the messages of reservations
are gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from celery import current_app
from django.urls import get_script_prefix, set_script_prefix

from .._compat import celery as compat
from .._values.lock_info import LockInfo
from .._values.processes import OfProcess
from ..guards import StatusGuard
from ..operators.held import QueuedJob
from ..operators.work import Explanation
from ..stores.records import key_of
from .options import OPTIONS
from .task import LockedTask
from .unique import has_ended, is_same_job

# Two values for each argument except the key. If they give two names for one row, its lock's name
# cannot be known from the row.
PROBES = ("1", "2")
# How long the broker and the workers may take to say where messages are: three questions to the
# workers, each for one second.
SEEK_SECONDS = 5.0

_loading = OfProcess(threading.RLock)


def load_tasks() -> None:
    """Load the tasks of all apps. Raises `ImportError` for what the import of a module raises, as
    where only its worker has a setting, and for the error of a task that cannot be made."""
    for _, _, error in not_loaded(_apps):
        raise ImportError(f"{type(error).__name__}: {error}") from error


def not_loaded(apps: Callable[[], Iterable[Any]]) -> Iterator[tuple[Any, bool, Exception]]:
    """Load the tasks of ``apps`` as their workers do. Yield each app whose tasks cannot be loaded,
    whether they were imported, and the error."""
    failed: list[Any] = []
    # All are imported before one is made: a shared task that is imported after an app was made is
    # made at once, and its error would end the import.
    for step in (_import_tasks, compat.make_tasks):
        # The import may have made further apps.
        for app in [each for each in apps() if each not in failed]:
            try:
                step(app)
            except Exception as error:
                failed.append(app)
                yield app, step is compat.make_tasks, error


def all_tasks() -> dict[str, Any]:
    """Return the tasks of all apps that are made, by name. Of those with one name, that of the
    current app.

    In a thread, for example of a web server, the current app is the project's only if the project
    made it the default. So the other apps are searched as well.
    """
    return dict(
        sorted({task.name: task for app in _apps() for task in compat.made_tasks(app)}.items())
    )


def locked_tasks() -> dict[str, LockedTask]:
    """Return the locked ones of `all_tasks`."""
    return {name: task for name, task in all_tasks().items() if isinstance(task, LockedTask)}


def _apps() -> list[Any]:
    return [*compat.active_apps(), current_app]


def _import_tasks(app: Any) -> None:
    # Without Celery's Django checks: this may be called by one of those.
    with _loading.own():
        before, prefix = os.environ.get(compat.SKIP_CHECKS, ""), get_script_prefix()
        os.environ[compat.SKIP_CHECKS] = "1"
        try:
            app.loader.import_default_modules()
        finally:
            set_script_prefix(prefix)  # `django.setup` overwrites the request's.
            os.environ[compat.SKIP_CHECKS] = before  # To Celery "" is as good as none.


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
        naming = self._task.naming
        # The name of ``**kwargs`` stands for any other argument.
        others = dict.fromkeys(naming.signature.parameters, probe)
        with suppress(Exception):  # Of the project's own function: there is no such lock.
            return naming.name_from({**others, self.guard.pk: key})
        return ""

    def send(self, pk: Any) -> str | None:
        """Send the task for the row, and return the message's task id.

        None for a class of the task whose ``apply_async`` returns no result. Raises `TypeError` if
        the task needs more than the key.
        """
        kwargs = {self.guard.pk: pk}
        # Celery's own check is off with ``typing=False``.
        self._task.naming.arguments_of((), kwargs)
        # Also if another message is reserved: it may be lost, and the guard lets only one work.
        return getattr(self._task.send_anyway((), kwargs), "id", None)


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
    changed = {each: value for each, value in options.items() if value != getattr(LockedTask, each)}
    own = {each: getattr(value, "__name__", value) for each, value in changed.items()}
    names, arguments = task.naming.named(args, kwargs), task.naming.arguments_of(args, kwargs)
    limits = {name: limit.n for name, limit in zip(names.limits, task.lock_limits, strict=True)}
    return Explanation(task, names.name, why, arguments, names.slots, own, names.unique, limits)


def duplicate_of(explanation: Explanation) -> str | LockInfo | None:
    """Return the task id or the lease of which the explained call would be a duplicate now, or
    None. Raises `StoreUnavailable`."""
    task, name = explanation.task, explanation.name
    if task.unique_while is None:
        return None
    store = task.locks.store
    other: str | None = store.get_note(key_of(str(task.name), explanation.unique_name or name))
    if other is not None or task.unique_while != "unfinished":
        return other
    holder: LockInfo | None = store.find(name)
    return holder if holder is not None and is_same_job(task, holder) else None


def gone_messages(jobs: Sequence[QueuedJob]) -> Iterator[tuple[QueuedJob, bool]]:
    """Yield each job whose message has ended, with True, or is in no known queue and with no worker
    that answers, with False. What is not known is not gone."""
    tasks = locked_tasks()
    sought: dict[Any, list[QueuedJob]] = {}
    silent: set[Any] = set()  # The result backend of these apps: each question costs a timeout.
    for job in jobs:
        if (task := tasks.get(job.task)) is None:
            continue
        ended = task.app not in silent and has_ended(task, job.task_id)
        silent |= {task.app} if ended is None else set()
        if ended:
            yield job, True
        else:
            sought.setdefault(task.app, []).append(job)
    for app, some in sought.items():
        nowhere: set[str] = set()
        with suppress(Exception):  # A router of the project's.
            queues = {compat.queue_of_calls(tasks[job.task]) for job in some}
            of = app, {job.task_id for job in some}, queues, nowhere
            # In a thread, since a broker may never answer: no exit waits for a daemon.
            seeker = threading.Thread(target=_seek, args=of, daemon=True)
            seeker.start()
            seeker.join(SEEK_SECONDS)
        yield from ((job, False) for job in some if job.task_id in nowhere)


def _seek(app: Any, ids: set[str], queues: set[str], nowhere: set[str]) -> None:
    """Add to ``nowhere`` those of some messages that are in no known queue, and with no worker.
    None of them where the broker keeps delayed messages, or no worker answers."""
    with suppress(Exception):  # A broker that does not answer, or cannot count.
        if compat.delays_natively(app) or compat.count_messages(app, queues):
            return
        workers = app.control.inspect(timeout=1.0)
        answers = workers.query_task(*ids) or {}
        ids = ids.difference(*answers.values()) if answers else set()
        if ids:  # Before 5.7 Celery shows here alone what waits in a worker for its ETA.
            later = [each for answer in (workers.scheduled() or {}).values() for each in answer]
            ids -= {each["request"]["id"] for each in later}
        if ids:  # Looked at once more: a message on its way may be in neither.
            read = workers.active_queues() or {}
            queues |= {queue["name"] for each in read.values() for queue in each}
            nowhere |= set() if compat.count_messages(app, queues) else ids
