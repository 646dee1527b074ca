"""The admin of locks: what is listed, what is shown of one, and who may see it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin import ShowFacets, helpers
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from ..models import Lock
from ..service import locks
from .cells import ASKED_BY, waiter_cells
from .changelist import LockChangeList
from .clear import said_plainly
from .commands import commands_on
from .filters import FILTERS
from .queued import QueuedAdmin
from .rows import Rows
from .seen import SeenLease, row_of
from .shelf import Shelf, aliases

__all__ = ["LockAdmin"]

LIVE_EVERY = 4
"""seconds between two looks of the open page"""


class LockAdmin(QueuedAdmin):
    """Live locks, straight from their stores. ``view_lock`` sees, ``delete_lock`` clears."""

    list_display = (
        "name", "store", "ttl", "age", "renewing", "held_by", "waiters", "task", "task_id",
    )  # fmt: skip
    list_filter = FILTERS
    list_per_page = 100
    # A form may have 1000 fields (DATA_UPLOAD_MAX_NUMBER_FIELDS), and every ticked row is one: with
    # the form's own, a list of 1000 could not be ticked as a whole.
    list_max_show_all = 500
    sortable_by = ("name", "ttl", "age")
    show_facets = ShowFacets.NEVER
    search_fields = ("name",)
    search_help_text = gettext_lazy("Words of the name, task, task id, host or process id.")
    actions = ("clear_selected",)
    fields = (
        "name", "store", "ttl", "renewing", "acquired", "age", "held_by", "thread", "task",
        "task_id", "row", "fence", "waiters", "key",
    )  # fmt: skip
    readonly_fields = fields

    class Media:
        css = {"all": ("django_tasklock/locks.css",)}
        js = ("django_tasklock/locks.js",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

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
        return Rows([Shelf(alias) for alias in found], problem=problem)

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

    @said_plainly
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(
            request,
            {
                "title": gettext("Live locks"),
                "live_url": reverse(
                    f"admin:{self.opts.app_label}_{self.opts.model_name}_live",
                    current_app=self.admin_site.name,
                ),
                "live_every": LIVE_EVERY,
                "health_url": self.url_of(request, "health"),
                "queued_url": self.url_of(request, "queued"),
                **(extra_context or {}),
            },
        )

    @said_plainly
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return super().change_view(request, object_id, form_url, extra_context)

    @said_plainly
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().history_view(request, object_id, extra_context)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        lock: Lock = context["original"]
        assert lock.info is not None
        context["list_url"] = self.url_of(request, "changelist")
        info = lock.info
        waiting = locks.using(info.store).waiters(info.name) if info.waiters else []
        context["waiting"] = [waiter_cells(owner) for owner in waiting]
        context["commands"] = commands_on(info, waiting)
        if self.has_delete_permission(request, lock):
            context["clear_url"] = self.url_of(request, "delete", quote(lock.pk))
            context["lease"] = SeenLease.of(lock.info).encode()
        return super().render_change_form(request, context, *args, **kwargs)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponse:
        return self.not_locked(request, object_id)
