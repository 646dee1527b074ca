"""Clearing from the admin: a page that asks, and the POST that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import label_for_field, lookup_field, unquote
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext, gettext_lazy, ngettext

from ..clearing import Outcome, clear_seen
from ..describe import printable
from ..exceptions import InvalidLockConfig, TaskLockError
from ..lease import LockInfo
from ..models import Lock
from .cells import LockCells
from .rows import Rows
from .seen import Picked, SeenLease, encode_many, row_of
from .shelf import problem_of

__all__ = ["ClearingAdmin", "listed", "said_plainly", "sentence_of", "written_at_once"]

View = TypeVar("View", bound=Callable[..., HttpResponse])
NAMES_IN_A_MESSAGE = 5
ROWS_TO_CONFIRM = 100
"""rows that the confirmation page shows; the rest it counts"""


def said_plainly(view: View) -> View:
    """Turn a store without an answer into a message on the list of locks."""

    @wraps(view)
    def answer(self: ClearingAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return view(self, request, *args, **kwargs)
        except (TaskLockError, InvalidLockConfig) as error:
            self.message_user(request, problem_of(error), messages.ERROR)
            return self.back_to_list(request)

    return cast("View", answer)


def written_at_once(view: Callable[..., Any]) -> Callable[..., Any]:
    """The view, outside of a transaction: with ATOMIC_REQUESTS the entries of what is cleared
    would be kept at the end, or not."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


class ClearingAdmin(LockCells):
    """The part of `LockAdmin` that clears. Who may not delete a lock gets none of it."""

    def get_urls(self) -> list[URLPattern]:
        view = written_at_once(self.admin_site.admin_view(self.clear_view))
        clear = path(
            "clear/",
            view,
            name=f"{self.opts.app_label}_{self.opts.model_name}_clear",
        )
        return [clear, *super().get_urls()]

    def has_delete_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        """Nobody clears what they may not see."""
        return super().has_delete_permission(request, obj) and self.has_view_permission(
            request, obj
        )

    def url_of(self, request: HttpRequest, view: str, *args: str) -> str:
        """The address of one of this admin's views; the list's search and page go along."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view}"
        url = reverse(name, args=args, current_app=self.admin_site.name)
        filters = self.get_preserved_filters(request)
        return add_preserved_filters({"preserved_filters": filters, "opts": self.opts}, url)

    def back_to_list(self, request: HttpRequest) -> HttpResponseRedirect:
        return HttpResponseRedirect(self.url_of(request, "changelist"))

    def not_locked(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Back to the list, with the message that the lock of this id is not locked."""
        name = unquote(object_id).partition(":")[2] or object_id
        sentence = gettext("“%(name)s” is not locked.") % {"name": printable(name)}
        self.message_user(request, sentence, messages.WARNING)
        return self.back_to_list(request)

    @admin.action(permissions=["delete"], description=gettext_lazy("Clear selected locks"))
    def clear_selected(self, request: HttpRequest, rows: Rows | Picked) -> HttpResponse:
        """Ask before clearing the leases that were ticked, or all of the list."""
        picked = rows if isinstance(rows, Picked) else Picked(held=list(rows))
        return self.confirmation(request, picked)

    @said_plainly
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask before clearing one lock: the lease that the detail page posts, or today's."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        if "lease" in request.POST:
            return self.confirmation(request, Picked.from_boxes([request.POST["lease"]]))
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self.not_locked(request, object_id)
        return self.confirmation(request, Picked(held=[lock]))

    def confirmation(self, request: HttpRequest, picked: Picked) -> HttpResponse:
        """The page that asks; back to the list where there is nothing left to ask about."""
        self.report(
            request, {Outcome.CHANGED_HANDS: picked.changed, Outcome.NOT_LOCKED: picked.ended}
        )
        if not picked.held:
            return self.back_to_list(request)
        leases = encode_many(SeenLease.of(lock.info) for lock in picked.held if lock.info)
        most = cast("int | None", settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        # A little is left for the rest of the form.
        if most is not None and len(leases) > most - 4096:
            self.message_user(
                request,
                gettext(
                    "%(count)d locks are too many for one form. Search for fewer of them, "
                    "or use “manage.py locks clear”."
                )
                % {"count": len(picked.held)},
                messages.ERROR,
            )
            return self.back_to_list(request)
        fields = [field for field in self.get_list_display(request) if field != "name"]
        context = {
            **self.admin_site.each_context(request),
            "title": ngettext("Clear this lock?", "Clear these locks?", len(picked.held)),
            "opts": self.opts,
            "media": self.media,
            "headers": [label_for_field(field, Lock, self) for field in ("name", *fields)],
            "rows": [
                (lock, [(field, lookup_field(field, lock, self)[2]) for field in fields])
                for lock in picked.held[:ROWS_TO_CONFIRM]
            ],
            "more": max(0, len(picked.held) - ROWS_TO_CONFIRM),
            "count": len(picked.held),
            "leases": leases,
            "clear_url": self.url_of(request, "clear"),
            "list_url": self.url_of(request, "changelist"),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request, "admin/django_tasklock/lock/clear_confirmation.html", context
        )

    @said_plainly
    def clear_view(self, request: HttpRequest) -> HttpResponse:
        """Clear each lease that the confirmation page posts, if it still holds its lock."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        by = f"{request.user.get_username()} in the admin"
        became: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
        try:
            for seen in SeenLease.decode_many(request.POST.get("leases", "")):
                outcome, holder = clear_seen(
                    seen.service, seen.name, seen.token, seen.digest, by=by
                )
                became[outcome].append(seen.name)
                if outcome is Outcome.CLEARED and holder:
                    # At once: the process may not live to the last of them.
                    self.log_cleared(request, holder)
        finally:
            # Also of those that were cleared before the store went away.
            self.report(request, became)
        return self.back_to_list(request)

    def log_cleared(self, request: HttpRequest, info: LockInfo) -> None:
        """Write a LogEntry: who cleared it, and who held it."""
        LogEntry.objects.log_actions(
            request.user.pk,
            [row_of(info)],
            DELETION,
            gettext("Cleared. It was held by %(owner)s in the store “%(store)s”.")
            % {"owner": printable(info.owner), "store": info.store},
        )

    def report(self, request: HttpRequest, became: Mapping[Outcome, list[str]]) -> None:
        """A message for each thing that became of some locks."""
        for outcome, names in became.items():
            if names:
                level, sentence = sentence_of(outcome, len(names))
                self.message_user(request, sentence % {"names": listed(names)}, level)


def sentence_of(outcome: Outcome, count: int) -> tuple[int, str]:
    """The level and the words of a message, with a place for the names, about some locks."""
    if outcome is Outcome.CLEARED:
        return messages.SUCCESS, ngettext(
            "%(names)s was cleared.", "%(names)s were cleared.", count
        )
    if outcome is Outcome.CHANGED_HANDS:
        return messages.WARNING, ngettext(
            "%(names)s changed hands since the page was drawn, and was left alone.",
            "%(names)s changed hands since the page was drawn, and were left alone.",
            count,
        )
    return messages.INFO, ngettext(
        "%(names)s was not locked any more.", "%(names)s were not locked any more.", count
    )


def listed(names: list[str]) -> str:
    """The names in a sentence: the first few, and how many more."""
    listed = gettext(", ").join(f"“{name}”" for name in names[:NAMES_IN_A_MESSAGE])
    more = len(names) - NAMES_IN_A_MESSAGE
    if more <= 0:
        return listed
    return gettext("%(names)s and %(count)d more") % {"names": listed, "count": more}
