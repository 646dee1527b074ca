"""The page "Contention": the locks that were most wanted in the last hour."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext

from .._values.describe import duration, printable
from ..models import Lock
from ..operators.contention import EVENTS_READ, Contended, Past, contended, past_hour
from .moments import moment
from .page import Page
from .past import ask_history, owner_words
from .store_reader import aliases
from .task_links import task_link

__all__ = ["ContentionPage"]

ROWS_SHOWN = 100


class ContentionPage(Page):
    """Who wanted what, from the histories of all stores, read when the page is opened."""

    def urls(self) -> list[URLPattern]:
        """Return the URL of the page."""
        return [self.path("contention/", self.contention_view, "contention")]

    def contention_view(self, request: HttpRequest) -> HttpResponse:
        """Return the page with the most wanted locks first. Raises `PermissionDenied`."""
        self.require_view(request)
        known, problem = aliases()
        pasts: list[tuple[str, Past]] = []
        problems = [] if problem is None else [problem]
        for alias in known:
            past, silent = ask_history(alias, past_hour)
            if past is not None:
                pasts.append((alias, past))
            elif silent is not None:
                problems.append(silent)
        rows = contended(event for _, past in pasts for event in past.events)
        context = {
            "rows": [self._cells(request, row) for row in rows[:ROWS_SHOWN]],
            "more": max(0, len(rows) - ROWS_SHOWN),
            "stores": len(known) > 1,
            "asked": bool(pasts),
            "problems": problems,
            "reaches": [
                (printable(alias), moment(past.reaches))
                for alias, past in pasts
                if past.reaches is not None
            ],
            "events_read": EVENTS_READ,
        }
        return self.rendered(request, "contention.html", gettext("Contention"), context)

    def _cells(self, request: HttpRequest, row: Contended) -> dict[str, Any]:
        last = row.last
        return {
            "name": printable(row.name),
            "url": self.url_of(request, "change", quote(Lock.id_of(row.store, row.name))),
            "store": printable(row.store),
            "refused": row.refused,
            "waited": row.waited,
            "longest": duration(row.longest),
            "lost": row.lost,
            "cleared": row.cleared,
            "last": None if last is None else owner_words(last),
            "task": printable(last.task) if last and last.task else None,
            "task_id": task_link(last.task_id) if last else None,
        }
