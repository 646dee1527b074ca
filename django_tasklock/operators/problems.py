"""One thing that the doctor finds wrong: what the command prints, and the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from .._values.lock_info import LockInfo
from .reservations import QueuedJob
from .work import Work

# The page's words for the kinds of problems; the command prints the kinds themselves.
KINDS: Mapping[str, str | Promise] = {
    "lost work": gettext_lazy("lost work"),
    "fence": gettext_lazy("fence"),
    "unknown": gettext_lazy("unknown"),
    "owner gone": gettext_lazy("owner gone"),
    "no ttl": gettext_lazy("no TTL"),
    "reservation": gettext_lazy("reservation"),
    "settings": gettext_lazy("settings"),
    "server": gettext_lazy("server"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``kind`` is a key of `KINDS`: "unknown" is for rows whose locks' names are not known, or that a
    run without the lock has claimed, and for tasks that cannot be imported. ``what`` names the row,
    lock, store or check. ``message`` says what is wrong and ``hint`` what to do, in the language
    that was active when it was found. ``serious`` problems make the command exit with 1.

    What it is about, None where it is not about such a thing: the ``lock``, by its name, and its
    ``store``; ``info``, the lock's holder as it was seen; the ``task``; the row, by its ``model``
    and ``pk``. ``work`` and ``fence`` belong to a lost row. A reservation has its ``job``, and
    ``ended`` if its message is known to have ended.
    """

    kind: str
    what: str
    message: str
    hint: str = ""
    serious: bool = True
    store: str | None = None
    lock: str | None = None
    info: LockInfo | None = None
    task: str | None = None
    model: type[Model] | None = None
    pk: Any = None
    work: Work | None = None
    fence: int | None = None
    job: QueuedJob | None = None
    ended: bool = False

    @property
    def sendable(self) -> bool:
        """Whether it is a lost row, whose task can be sent again."""
        return self.kind == "lost work"

    @property
    def seen(self) -> str:
        """What tells this lost row from another, and from itself when it is lost again."""
        return f"{self.task} {self.pk} {self.fence}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields that ``locks doctor --format json`` prints, as JSON-able values."""
        names = ("kind", "what", "message", "hint", "serious", "task", "store", "lock")
        return {name: getattr(self, name) for name in names} | {
            "model": self.model and self.model._meta.label,
            "pk": None if self.pk is None else str(self.pk),
        }
