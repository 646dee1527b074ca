"""The page "Health": what ``manage.py locks doctor`` finds, and buttons that act on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern, reverse
from django.utils.translation import gettext

from .._engine.service import locks
from ..operators.clearing import LOCKS_PER_CLEAR
from ..operators.doctor import looks
from ..operators.hints import command_line
from ..operators.survey import Group, part_of, survey
from ..operators.wording import KINDS
from ..stores.criteria import Criteria
from .clear_page import ClearPage
from .health_findings import Finding, findings_of, not_known
from .page import LockModelAdmin, Page, error_on_list, url_name
from .requeue_page import RequeuePage, encode_rows
from .seen import SelectedLeases, row_of
from .store_reader import NOT_KNOWN, aliases, problem_of

__all__ = ["HealthPage"]

SHOWN = 25
"""findings of each group on the page"""
ROWS_PER_PAGE = 100
"""findings of a page about one kind"""
LISTED = {"owner gone": "gone", "no ttl": "endless"}
"""kinds that the list of locks shows, with its filter by state"""


@dataclass(frozen=True)
class Section:
    """The findings of a kind that the page shows, and the links and buttons for all of them."""

    kind: str
    serious: bool
    count: str
    more: bool
    """whether there are others, which were not counted"""
    findings: Sequence[Finding]
    rest_url: str | None = None
    rows: str | None = None
    """rows to be sent again, together"""
    sends: int = 0
    clears: int = 0
    """how many a press of "Clear all" would ask about; 0: there is no such button"""


class HealthPage(Page):
    """What is wrong, looked for when the page is opened: that asks the stores a lot."""

    def __init__(self, model_admin: LockModelAdmin, clear_page: ClearPage) -> None:
        super().__init__(model_admin)
        self.clear_page = clear_page
        self.requeue_page = RequeuePage(model_admin)

    def urls(self) -> list[URLPattern]:
        """Return the URLs of the page and of its POSTs."""
        return [
            self.path("health/", self.health_view, "health"),
            self.path("health/clear/", self.clear_gone_view, "clear_gone"),
            *self.requeue_page.urls(),
        ]

    def health_view(self, request: HttpRequest) -> HttpResponse:
        """Return the page with the first problems of each kind, the serious ones first; with
        ``kind`` in the query a ``page`` of the problems of that kind. Raises `PermissionDenied`.
        """
        self.require_view(request)
        kind = request.GET.get("kind", "")
        context: dict[str, Any] = {
            "sections": [],
            "problems": [],
            "contention_url": self.url_of(request, "contention"),
            "health_url": self.url_of(request, "health"),
            "clear_gone_url": self.url_of(request, "clear_gone"),
            "requeue_url": self.url_of(request, "requeue"),
            "command": command_line("doctor"),
        }
        try:
            if kind in KINDS:
                context |= self._of_kind(request, kind)
            else:
                groups = survey(looks(), SHOWN)
                context["sections"] = [self._section(request, group) for group in groups]
        except NOT_KNOWN as error:
            context["problems"] = [problem_of(error)]
        return self.rendered(request, "health.html", gettext("Health of the locks"), context)

    def _of_kind(self, request: HttpRequest, kind: str) -> dict[str, Any]:
        number = request.GET.get("page", "1")
        page = max(1, int(number)) if number.isdecimal() and len(number) < 7 else 1
        part = part_of(looks(), kind, (page - 1) * ROWS_PER_PAGE, ROWS_PER_PAGE)
        groups: dict[bool, Group] = {}
        for problem in part.found:
            group = groups.setdefault(problem.serious, Group(kind, problem.serious))
            group.first.append(problem)
            group.count += 1
        return {
            "kind": KINDS[kind],
            "page": page,
            "sections": [self._section(request, group) for group in groups.values()],
            "problems": list(map(not_known, part.silent)),
            "previous_url": self._kind_url(kind, page - 1) if page > 1 else None,
            "next_url": self._kind_url(kind, page + 1) if part.more else None,
        }

    def _kind_url(self, kind: str, page: int) -> str:
        return self._with_query("health", kind=kind, page=page)

    def _with_query(self, view: str, **query: object) -> str:
        # Without the search from which the user has come: it would leave findings out.
        url = reverse(
            f"admin:{url_name(self.model_admin, view)}",
            current_app=self.model_admin.admin_site.name,
        )
        return f"{url}?{urlencode(query)}"

    def _section(self, request: HttpRequest, group: Group) -> Section:
        kind, problems = group.kind, group.first
        sendable = [
            problem
            for problem in problems
            if problem.sendable and self.requeue_page.may_send(request, problem.model)
        ]
        may_clear = self.model_admin.has_delete_permission(request)
        return Section(
            str(KINDS.get(kind, kind)),
            group.serious,
            f"{group.count:,}",
            group.more,
            list(findings_of(self.model_admin, request, problems, sendable)),
            self._rest_url(request, kind) if group.more or group.count > len(problems) else None,
            encode_rows(sendable) if len(sendable) > 1 else None,
            len(sendable),
            min(group.count, LOCKS_PER_CLEAR) if may_clear and kind == "owner gone" else 0,
        )

    def _rest_url(self, request: HttpRequest, kind: str) -> str:
        if kind in LISTED:
            return self._with_query("changelist", state=LISTED[kind])
        if kind == "no message":
            return self.url_of(request, "queued")
        return self._kind_url(kind, 1)

    @error_on_list
    def clear_gone_view(self, request: HttpRequest) -> HttpResponse:
        """Ask before clearing the locks whose owner is gone, `LOCKS_PER_CLEAR` at a time.

        Raises `PermissionDenied`.
        """
        self.require_delete(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        selected = SelectedLeases()
        for alias in aliases()[0]:
            store = locks.using(alias).store
            if store.supports_listing and len(selected.held) < LOCKS_PER_CLEAR:
                most = LOCKS_PER_CLEAR - len(selected.held)
                found, _ = store.search(Criteria(gone=True), "ttl", most)
                selected.held += map(row_of, found)
        if not selected.held:
            nobody = gettext("No lock’s owner is known to be gone any more.")
            self.model_admin.message_user(request, nobody, messages.INFO)
        return self.clear_page.confirmation(request, selected)
