"""What operators know of tasks: guarded work, and what a call would do about its lock.

The Celery room knows tasks. It is imported when somebody asks, since a site may have no Celery, and
a web process need not import its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from .._values.lock_info import LockInfo
    from ..guards import StatusGuard
    from .held import QueuedJob


class CeleryMissing(ImportError):
    """Celery cannot be imported here: tasks are not known, and everything else works."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"Celery cannot be imported here, so no task is known: {reason}")


class Work(Protocol):
    """A task with a guard, the lock store it uses, and how to send it."""

    guard: StatusGuard
    task: str
    store: str

    def names_of(self, pk: Any) -> Sequence[str]:
        """Return the names that the row's lock may have; none if the row is not enough."""

    def send(self, pk: Any) -> str | None:
        """Send the row's task again, and return the new message's task id, None if not known.

        Raises `TypeError` if the call needs more than the row.
        """


class Explanation(NamedTuple):
    """What a call of a task has to do with locks.

    ``task`` is the task itself, with its options as attributes. ``why`` says how the lock's name
    comes about. ``slots`` is how many calls may run under it at once. ``options`` are the task's
    options that have not the default. ``unique_name`` is what makes calls duplicates, if not
    ``name``. ``limits`` are the names of its limits, each with its number of permits.
    """

    task: Any
    name: str
    why: str
    arguments: Mapping[str, Any]
    slots: int
    options: Mapping[str, Any]
    unique_name: str
    limits: Mapping[str, int]


class Tasks(Protocol):
    """What the Celery room answers, once the modules with tasks are imported: a module of it."""

    def guarded_tasks(self) -> Iterable[Work]:
        """Return every task that has a guard, by name."""

    def explain_call(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Explanation | None:
        """Explain a call of a task; None if no such task takes a lock. Raises `TypeError` or
        `ValueError` for arguments that do not fit."""

    def duplicate_of(self, explanation: Explanation) -> str | LockInfo | None:
        """Return the task id, or the lease of the run, of which the call would be a duplicate now;
        None if it would be sent. Raises `StoreUnavailable`."""

    def gone_messages(self, jobs: Sequence[QueuedJob]) -> Iterable[tuple[QueuedJob, bool]]:
        """Return each job whose message is known to have ended, with True; or, with False, is in no
        known queue and with no worker that answers. It may ask the workers, for some seconds."""


# What imports the modules with tasks: set when Django sets the app up.
loaders: list[Callable[[], Tasks]] = []


def tasks() -> Tasks:
    """Import the modules with tasks, and return what is known of them. Raises `CeleryMissing`, and
    `ImportError` for whatever importing raises."""
    if not loaders:
        raise CeleryMissing("the app django_tasklock is not ready")
    return loaders[0]()
