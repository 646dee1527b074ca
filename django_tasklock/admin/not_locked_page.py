"""The page of a lock that nobody holds: what happened to it, and who holds permits of it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from django.contrib.admin.utils import quote, unquote
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext

from .._engine.service import locks
from .._values.arguments import checked_name
from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..models import Lock
from ..operators.hints import command_line
from ..operators.permits import held_permits
from .moments import moment
from .page import Page, url_name
from .past import event_rows, events_of, owner_words

__all__ = ["NotLockedPage", "history_of"]


def history_of(store: str, name: str) -> dict[str, Any]:
    """Return what the part of a page about the history of a lock needs."""
    events, problem = events_of(store, name)
    return {
        "events": event_rows(events or []),
        "events_problem": problem,
        "history_command": command_line("history", name, store=store),
    }


class NotLockedPage(Page):
    """At the address of the lock's own page, after the lock is gone."""

    def urls(self) -> list[URLPattern]:
        """Return none: the page is the answer of the lock's own."""
        return []

    def answer(self, request: HttpRequest, object_id: str) -> HttpResponse | None:
        """Return the page; None if nothing is known of the lock, or another page was asked for.

        The caller has found that the user may see locks. Raises `TaskLockError`.
        """
        match = request.resolver_match
        if match is None or match.url_name != url_name(self.model_admin, "change"):
            return None
        try:
            store, name = Lock.parts_of(unquote(object_id))
            checked_name(name)
        except ValueError:
            return None
        permits = held_permits(locks.using(store), name)
        looked_at = moment(datetime.now(timezone.utc))
        history = history_of(store, name)
        if not permits and not history["events"]:
            return None
        return self.rendered(
            request,
            "not_locked.html",
            (gettext("Permits of “%(name)s”") if permits else gettext("“%(name)s” is not locked"))
            % {"name": printable(name)},
            {
                "name": printable(name),
                "looked_at": looked_at,
                "permits": [self._permit(request, info) for info in permits],
                **history,
            },
        )

    def _permit(self, request: HttpRequest, info: LockInfo) -> tuple[str, str, str]:
        """The name of a permit, the address of its page, and who holds it."""
        url = self.url_of(request, "change", quote(Lock.id_of(info.store, info.name)))
        return printable(info.name), url, owner_words(info.owner)
