"""The admin of locks: what is listed, what is shown of one, and who may see it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import AdminSite, ShowFacets, helpers
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from .._engine.service import locks
from .._values.describe import printable
from ..models import Lock
from .cells import ASKED_BY, LockCells, waiter_cells
from .changelist import LockChangeList
from .clear_page import ClearPage
from .commands import commands_on
from .contention_page import ContentionPage
from .filters import FILTERS
from .health_page import HealthPage
from .hold_page import HoldPage
from .live_page import LivePage
from .not_locked_page import NotLockedPage, history_of
from .page import LockModelAdmin, error_on_list, url_name, url_of
from .queued_page import QueuedPage
from .rows import Rows
from .seen import SeenLease, SelectedLeases, row_of
from .store_reader import StoreReader, aliases
from .summary import summary_of

__all__ = ["LockAdmin"]

LIVE_EVERY_SECONDS = 4
"""between two looks of the open page, unless its reader has chosen another pause"""
PAUSES_SECONDS = (2, 4, 10, 30)
"""what may be chosen"""


class LockAdmin(LockCells):
    """Live locks, straight from their stores. ``view_lock`` sees, ``delete_lock`` clears and holds.

    Its own methods are those that Django calls by name; each page that Django does not have is an
    object in ``pages``.
    """

    list_display = (
        "name", "store", "ttl", "age", "renewing", "held_by", "waiters", "longest_wait", "task",
        "task_id",
    )  # fmt: skip
    list_filter = FILTERS
    list_per_page = 100
    # A form may have 1000 fields (DATA_UPLOAD_MAX_NUMBER_FIELDS), and every ticked row is one: with
    # the form's own, a list of 1000 could not be ticked as a whole.
    list_max_show_all = 500
    sortable_by = ("name", "ttl", "age", "waiters", "longest_wait")
    show_facets = ShowFacets.NEVER
    search_fields = ("name",)
    search_help_text = gettext_lazy(
        "Words of the name, task, task id, host or process id; video:* is the beginning of a name."
    )
    actions = ("clear_selected",)
    fields = (
        "full_name", "store", "ttl", "renewing", "acquired", "age", "held_by", "thread", "task",
        "task_id", "row", "fence", "waiters", "wait_by_name", "key",
    )  # fmt: skip
    readonly_fields = fields

    class Media:
        css = {"all": ("django_tasklock/locks.css", "django_tasklock/themes.css")}
        js = ("django_tasklock/locks.js", "django_tasklock/copy.js")

    def __init__(self, model: type[Lock], admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        self.clear_page = ClearPage(self)
        self.live_page = LivePage(self)
        self.not_locked_page = NotLockedPage(self)
        self.pages = (
            QueuedPage(self), HealthPage(self, self.clear_page), HoldPage(self),
            ContentionPage(self), self.live_page, self.clear_page,
        )  # fmt: skip

    @property
    def model_admin(self) -> LockModelAdmin:
        """Itself: what `error_on_list` asks a page and the admin for."""
        return self

    def get_urls(self) -> list[URLPattern]:
        # Before Django's own, one of which takes any path for the id of a lock.
        return [url for page in self.pages for url in page.urls()] + super().get_urls()

    def get_preserved_filters(self, request: HttpRequest) -> str:
        of_live_page = self.live_page.preserved_filters(request)
        return super().get_preserved_filters(request) if of_live_page is None else of_live_page

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        """Nobody clears what they may not see."""
        return super().has_delete_permission(request, obj) and self.has_view_permission(
            request, obj
        )

    def get_list_display(self, request: HttpRequest) -> Any:
        """Without the store's column where there is only one store."""
        one = len(aliases()[0]) < 2
        return [name for name in self.list_display if not (one and name == "store")]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> Any:
        # From Django 6.1 on it is said for which page.
        where = {} if action_location is None else {"action_location": action_location}
        actions = super().get_actions(request, **where)
        # The site's own would delete rows of a table that does not exist.
        actions.pop("delete_selected", None)
        return actions

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LockChangeList]:
        return LockChangeList

    def get_queryset(self, request: HttpRequest) -> Any:
        found, problem = aliases()
        return Rows([StoreReader(alias) for alias in found], problem=problem)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Lock | None:
        try:
            store, name = Lock.parts_of(object_id)
            info = locks.using(store).get(name)
        except ValueError:  # no lock can be called that
            return None
        if info is None:
            return None
        lock = row_of(info)
        vars(lock)[ASKED_BY] = request
        return lock

    def action_checkbox(self, obj: Lock) -> SafeString:
        """The box carries the lease as drawn, so that no other is cleared by it."""
        assert obj.info is not None
        label = format_html(gettext("Select this lock for an action - {}"), obj.name)
        box = forms.CheckboxInput({"class": "action-select", "aria-label": label}, lambda _: False)
        return box.render(helpers.ACTION_CHECKBOX_NAME, SeenLease.of(obj.info).encode())

    @error_on_list
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        may_hold = self.has_delete_permission(request)
        answer = super().changelist_view(
            request,
            {
                "hold_url": url_of(self, request, "hold") if may_hold else None,
                "title": gettext("Live locks"),
                "live_url": reverse(
                    f"admin:{url_name(self, 'live')}", current_app=self.admin_site.name
                ),
                "live_every": LIVE_EVERY_SECONDS,
                "live_pauses": sorted({*PAUSES_SECONDS, LIVE_EVERY_SECONDS}),
                "contention_url": url_of(self, request, "contention"),
                "health_url": url_of(self, request, "health"),
                "queued_url": url_of(self, request, "queued"),
                **(extra_context or {}),
            },
        )
        context = getattr(answer, "context_data", None)
        if context and isinstance(context.get("cl"), LockChangeList):
            context["summary"] = summary_of(context["cl"], request, context["contention_url"])
        return answer

    @error_on_list
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if not self.has_view_permission(request):  # Before the store is asked.
            raise PermissionDenied
        return super().change_view(request, object_id, form_url, extra_context)

    @error_on_list
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):  # Before the store is asked.
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        lock: Lock = context["original"]
        assert lock.info is not None
        context["list_url"] = url_of(self, request, "changelist")
        info = lock.info
        # None: the store does not count them with the lock, but may know them.
        waiting = locks.using(info.store).waiters(info.name) if info.waiters != 0 else []
        context["waiting"] = [waiter_cells(owner) for owner in waiting]
        context["commands"] = commands_on(info, waiting)
        context |= history_of(info.store, info.name)
        if self.has_delete_permission(request, lock):
            context["clear_url"] = url_of(self, request, "delete", quote(lock.pk))
            context["lease"] = SeenLease.of(lock.info).encode()
        return super().render_change_form(request, context, *args, **kwargs)

    @error_on_list
    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask before clearing one lock: the lease that the detail page posts, or today's."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        if "lease" in request.POST:
            selected = SelectedLeases.from_boxes([request.POST["lease"]])
            return self.clear_page.confirmation(request, selected)
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        return self.clear_page.confirmation(request, SelectedLeases(held=[lock]))

    @admin.action(permissions=["delete"], description=gettext_lazy("Clear selected locks"))
    def clear_selected(self, request: HttpRequest, rows: Rows | SelectedLeases) -> HttpResponse:
        """Ask before clearing the leases that were ticked, or all of the list."""
        if isinstance(rows, SelectedLeases):
            return self.clear_page.confirmation(request, rows)
        selected = SelectedLeases(held=list(rows))
        for problem in rows.problems:  # The locks of that store are not among them.
            self.message_user(request, problem, messages.ERROR)
        return self.clear_page.confirmation(request, selected)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponse:
        shown = self.not_locked_page.answer(request, object_id)
        if shown is not None:
            return shown
        name = unquote(object_id).partition(":")[2] or object_id
        sentence = gettext("“%(name)s” is not locked.") % {"name": printable(name)}
        self.message_user(request, sentence, messages.WARNING)
        return HttpResponseRedirect(url_of(self, request, "changelist"))
