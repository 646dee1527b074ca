"""What the doctor finds wrong, one class for each thing that the command or the page can mend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from django.utils.translation import gettext, gettext_noop

from .._values.lock_info import LockInfo
from .held import QueuedJob
from .work import Work

# The kinds of problems. The page translates them; the command prints them as they are.
KINDS = (
    gettext_noop("lost work"), gettext_noop("waiting too long"), gettext_noop("other store"),
    gettext_noop("fence"), gettext_noop("unknown"), gettext_noop("owner gone"),
    gettext_noop("overdue"), gettext_noop("reservation"), gettext_noop("settings"),
    gettext_noop("server"),
)  # fmt: skip
# of rows whose task can be sent again, the last on a second word alone
SENT = KINDS[:3]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, by itself with the settings, the tasks, or a server.

    ``kind`` is one of `KINDS`: "unknown" is for rows whose locks' names are not known, or that a
    run without the lock has claimed; for rows that cannot be looked for, because their database
    does not answer or their guard has no ``since_field``; and for tasks that cannot be imported.
    ``what`` names the row, lock, store or check. ``message`` says what is wrong and ``hint`` what
    to do, in the language that was active when it was found. ``serious`` problems make the command
    exit with 1. From ``task`` on it says the same as ``what`` for programs: None where it is not
    about such a thing.
    """

    kind: str
    what: str
    message: str
    hint: str = ""
    serious: bool = True
    task: str | None = None
    store: str | None = None
    lock: str | None = None
    model: str | None = None
    pk: Any = None

    def as_json(self) -> dict[str, Any]:
        """What ``locks doctor --format json`` prints, as JSON-able values."""
        said = {each.name: getattr(self, each.name) for each in fields(Problem)}
        return said | {"pk": None if self.pk is None else str(self.pk)}


def weight_of(problem: Problem) -> tuple[bool, int]:
    """The key that sorts problems: serious ones first, servers and settings before many rows."""
    return not problem.serious, -KINDS.index(problem.kind)


def first_of(kind: str, what: str, shown: int, total: int) -> Iterator[Problem]:
    """Yield a note, where no more than the first ``shown`` of some things were looked at."""
    if total > shown:
        message = gettext("Only the first %(shown)d of %(total)d were looked at.")
        yield Problem(kind, what, message % {"shown": shown, "total": total}, serious=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRow(Problem):
    """A row with work that no run does, and whose lock nobody holds. ``work`` is the task to be
    sent again, at most once in ``pause`` seconds. ``asks``: the row may be another task's, which
    has a problem of its own. ``fence`` is the row's own."""

    work: Work
    fence: int | None
    asks: bool
    pause: float

    @property
    def seen(self) -> str:
        """What tells this lost row from another, and from itself when it is lost again."""
        return f"{self.task} {self.pk} {self.fence} {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockProblem(Problem):
    """A lock that is held: ``info`` is its holder as it was seen."""

    info: LockInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneMessage(Problem):
    """A reservation, ``job``, whose message has ``ended``, or is not found."""

    job: QueuedJob
    ended: bool
