"""The rows of the page "Health": what was found, where it leads, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest

from .._values.describe import printable
from ..models import Lock
from ..operators.doctor import Problem
from ..operators.wording import KINDS
from .page import LockModelAdmin, url_of
from .requeue_page import encode_rows
from .row_links import row_url
from .seen import SeenLease
from .store_reader import problem_of

__all__ = ["Finding", "findings_of", "not_known"]


@dataclass(frozen=True)
class Finding:
    """One row of the page. Where there is no link or button, its field is None."""

    serious: bool
    kind: str
    what: str
    message: str
    hint: str
    url: str | None = None
    """of the lock's or the row's page"""
    row: str | None = None
    row_url: str | None = None
    """the row that is stuck behind a lock"""
    lease: str | None = None
    clear_url: str | None = None
    rows: str | None = None
    """the row as it was seen, to be sent again"""


def findings_of(
    model_admin: LockModelAdmin,
    request: HttpRequest,
    problems: Sequence[Problem],
    sendable: Sequence[Problem],
) -> Iterator[Finding]:
    """Yield the rows of some problems, with the links and buttons for the user of the request.

    ``sendable`` are those whose tasks the user may have sent again.
    """
    may_clear = model_admin.has_delete_permission(request)
    may_send = set(map(id, sendable))
    rows = _rows(model_admin, problems)
    for problem in problems:
        message, hint = _words(problem)
        url, row, url_of_row, lease, clear_url = None, None, None, None, None
        if problem.info is not None:
            pk = quote(Lock.id_of(problem.info.store, problem.info.name))
            url = url_of(model_admin, request, "change", pk)
            if may_clear:
                lease = SeenLease.of(problem.info).encode()
                clear_url = url_of(model_admin, request, "delete", pk)
        guarded = problem.row or rows.get((problem.model, problem.pk))
        if guarded is not None:
            url_of_row = row_url(model_admin, request, guarded)
            row = printable(guarded) if url_of_row else None
            if problem.info is None:
                url, row, url_of_row = url_of_row, None, None
        yield Finding(
            problem.serious,
            str(KINDS.get(problem.kind, problem.kind)),
            printable(problem.what),
            printable(message),
            printable(hint),
            url,
            row,
            url_of_row,
            lease,
            clear_url,
            encode_rows([problem]) if id(problem) in may_send else None,
        )


def not_known(problem: Problem) -> str:
    """Return a sentence on what could not be looked at."""
    message, _ = _words(problem)
    return message if problem.error is not None else printable(f"{problem.what}: {message}")


def _rows(model_admin: LockModelAdmin, problems: Sequence[Problem]) -> dict[tuple[Any, Any], Model]:
    """The lost rows that have a page here, in one question for each model."""
    keys: dict[type[Model], list[Problem]] = {}
    for problem in problems:
        if problem.work and problem.model and problem.pk is not None:
            keys.setdefault(problem.model, []).append(problem)
    found: dict[tuple[Any, Any], Model] = {}
    for model, some in keys.items():
        work = some[0].work
        assert work is not None
        if model_admin.admin_site.is_registered(model):
            rows = work.guard.rows().filter(pk__in=[problem.pk for problem in some])
            found.update({(model, row.pk): row for row in rows})
    return found


def _words(problem: Problem) -> tuple[str, str]:
    """Why, and what to do, in the page's language.

    What a check of the settings or of a server found is in English, like every system check of
    Django.
    """
    if problem.wording is not None:
        return problem.wording.page_filled(problem.values)
    if problem.error is not None:
        return problem_of(problem.error), problem.hint
    return problem.message, problem.hint
