"""One thing that the doctor finds wrong: what the command prints, and the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from .._values.lock_info import LockInfo
from .work import Work

__all__ = ["KINDS", "Problem"]

KINDS: Mapping[str, str | Promise] = {
    "lost work": gettext_lazy("lost work"),
    "fence": gettext_lazy("fence"),
    "unknown": gettext_lazy("unknown"),
    "owner gone": gettext_lazy("owner gone"),
    "no ttl": gettext_lazy("no TTL"),
    "settings": gettext_lazy("settings"),
    "server": gettext_lazy("server"),
}
"""The page's words for the kinds of problems; the command prints the kinds themselves."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``kind`` is a key of `KINDS`: "unknown" is for rows whose locks' names are not known, and for
    tasks that cannot be imported. ``what`` names the row, lock, store or check. ``message`` says
    what is wrong and ``hint`` what to do, in the language that was active when it was found.
    ``command`` is the command line that the hint names; "" where it names none. ``serious``
    problems make the command exit with 1.

    What it is about, None where it is not about such a thing: the ``lock``, by its name, and its
    ``store``; ``info``, the lock's holder as it was seen; the ``task``; the row, by its ``model``
    and ``pk``, and ``row`` itself where it was read. ``work`` and ``fence`` belong to a lost row;
    ``error`` is what was raised.
    """

    kind: str
    what: str
    message: str
    hint: str = ""
    command: str = ""
    serious: bool = True
    store: str | None = None
    lock: str | None = None
    info: LockInfo | None = None
    task: str | None = None
    model: type[Model] | None = None
    pk: Any = None
    row: Model | None = None
    work: Work | None = None
    fence: int | None = None
    error: Exception | None = None

    @property
    def sendable(self) -> bool:
        """Whether the task of a lost row is to be sent again. Not while an operator holds its lock:
        it would be skipped, or wait for the end of the hold."""
        return self.kind == "lost work" and self.info is None

    def as_json(self) -> dict[str, Any]:
        """Return the fields that ``locks doctor --format json`` prints, as JSON-able values."""
        return {
            "kind": self.kind,
            "what": self.what,
            "message": self.message,
            "hint": self.hint,
            "serious": self.serious,
            "task": self.task,
            "pk": None if self.pk is None else str(self.pk),
            "model": None if self.model is None else self.model._meta.label,
            "store": self.store,
            "lock": self.lock,
        }
