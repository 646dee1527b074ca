"""Clearing from the admin: a page that asks, and the POST that does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.utils import label_for_field, lookup_field
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern
from django.utils.translation import gettext, ngettext

from ..models import Lock
from ..operators.clearing import LOCKS_PER_CLEAR, Cleared, Outcome, Seen, clear_all_seen
from ..operators.meaning import meanings
from .clear_log import ClearLog
from .meaning_cells import meaning_cell, summary_of
from .outcomes import show_outcomes
from .page import Page, error_on_list
from .seen import SeenLease, SelectedLeases, encode_many

__all__ = ["ClearPage"]

ROWS_TO_CONFIRM = 100
"""rows that the confirmation page shows; the rest it counts"""
OTHER_FIELDS_BYTES = 4096
"""of the form, beside the one with the leases"""


class ClearPage(Page):
    """The page that asks, and the view that clears. Both need the permission to delete locks."""

    def urls(self) -> list[URLPattern]:
        """Return the URL of the POST; the page that asks is the answer of other views."""
        # The log entries of what was cleared must stay when a store fails later.
        return [self.path("clear/", self.clear_view, "clear", atomic=False)]

    def confirmation(self, request: HttpRequest, selected: SelectedLeases) -> HttpResponse:
        """Return the page that asks; a redirect to the list if no lease is left to ask about."""
        show_outcomes(
            self.model_admin,
            request,
            {Outcome.CHANGED_HANDS: selected.changed, Outcome.NOT_LOCKED: selected.ended},
        )
        held, back = selected.held, _back(request)
        if not held:
            return self.redirect(request, back)
        leases = encode_many(SeenLease.of(lock.info) for lock in held if lock.info)
        most = cast("int | None", settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        if most is not None and len(leases) > most - OTHER_FIELDS_BYTES:
            self.model_admin.message_user(
                request,
                gettext(
                    "%(count)d locks are too many for one form. Search for fewer of them, "
                    "or use “manage.py locks clear”."
                )
                % {"count": len(held)},
                messages.ERROR,
            )
            return self.redirect(request, back)
        found = meanings([lock.info for lock in held if lock.info])
        safe, summary = summary_of(found)
        columns = self.model_admin
        fields = [str(field) for field in columns.get_list_display(request) if field != "name"]
        return self.rendered(
            request,
            "clear_confirmation.html",
            ngettext("Clear this lock?", "Clear these locks?", len(held)),
            {
                "headers": [label_for_field(field, Lock, columns) for field in ("name", *fields)],
                "rows": [
                    (
                        lock,
                        [(field, lookup_field(field, lock, columns)[2]) for field in fields],
                        meaning_cell(meaning),
                    )
                    for lock, meaning in zip(held[:ROWS_TO_CONFIRM], found, strict=False)
                ],
                "safe": safe,
                "summary": summary,
                "more": max(0, len(held) - ROWS_TO_CONFIRM),
                "count": len(held),
                "leases": leases,
                "clear_url": self.url_of(request, "clear"),
                "back": back,
                "back_url": self.url_of(request, back),
            },
        )

    @error_on_list
    def clear_view(self, request: HttpRequest) -> HttpResponse:
        """Clear each lease that the confirmation page posts, if it still holds its lock.

        Raises `PermissionDenied`, and `BadRequest` for what that page did not make.
        """
        self.require_delete(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        names: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
        try:
            for part in _parts(SeenLease.decode_many(request.POST.get("leases", ""))):
                for name, outcome, _ in _clear(request, part):
                    names[outcome].append(name)
        finally:
            # Also of those that were cleared before the store went away.
            show_outcomes(self.model_admin, request, names)
        return self.redirect(request, _back(request))


def _back(request: HttpRequest) -> str:
    """The view to go back to: the one that asked for the confirmation."""
    return "health" if request.POST.get("back") == "health" else "changelist"


def _parts(leases: Iterable[SeenLease]) -> Iterator[list[SeenLease]]:
    """Leases of one store each, as many as are cleared together, and no lock twice in one part."""
    parts: dict[str, dict[str, SeenLease]] = {}
    for seen in dict.fromkeys(leases):
        part = parts.setdefault(seen.store, {})
        if seen.name in part or len(part) == LOCKS_PER_CLEAR:
            yield list(part.values())
            part.clear()
        part[seen.name] = seen
    yield from (list(part.values()) for part in parts.values())


def _clear(request: HttpRequest, leases: Sequence[SeenLease]) -> Sequence[Cleared]:
    """Clear leases of one store, with a log entry for each."""
    log = ClearLog(request)
    by = f"{request.user.get_username()} in the admin"
    seen = [Seen(lease.name, lease.token, lease.digest) for lease in leases]
    done = clear_all_seen(leases[0].service, seen, by=by, before=log.asked)
    log.answered({name for name, outcome, _ in done if outcome is Outcome.CLEARED})
    return done
