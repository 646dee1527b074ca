"""The admin of locks: Django's own pages, and which hook of them does what."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext, gettext_lazy

from .._compat.django import add_without_transaction
from .._engine.service import locks
from .._values.arguments import base_of
from .._values.lock_info import LockInfo
from .._values.words import printable
from ..models import Lock
from ..operators.held import held_permits
from ..operators.holders import sentence
from ..operators.rows import label_of, row_if_known
from .clear_and_hold import HoldForm, clear, question_about, user_name
from .health import end_reservations, findings, send_again
from .parts import COLUMNS, address, chosen_alias, facts, frame, row_url, waiter_cells
from .reading import NOT_KNOWN, LockChangeList, Rows, history, problem_of, read, seen_lock

# Locks of one form: it may have 1,000 fields.
MOST_CLEARED = 500


def needs(permission: str) -> Callable[[Any], Any]:
    """Decorate a view: it asks no store for users without the permission, and what a store does
    not answer is a message on the list."""

    def decorate(view: Any) -> Any:
        @wraps(view)
        def answer(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not getattr(self, f"has_{permission}_permission")(request):
                raise PermissionDenied
            try:
                return cast("HttpResponse", view(self, request, *args, **kwargs))
            except NOT_KNOWN as error:
                messages.error(request, problem_of(error))
                return HttpResponseRedirect(address(request, "changelist"))

        return answer

    return decorate


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Live locks, from their store. ``view_lock`` sees, ``delete_lock`` clears and holds."""

    list_display: Any = ("name", *COLUMNS)
    list_per_page = 100
    list_max_show_all = MOST_CLEARED
    show_full_result_count = False
    sortable_by = ()
    search_fields = ("name",)
    actions = ("delete_selected",)

    class Media:
        css = {"all": ("django_tasklock/locks.css",)}
        js = ("django_tasklock/locks.js",)

    def get_urls(self) -> list[URLPattern]:
        staff = self.admin_site.admin_view
        # Before Django's own, one of which takes any path for the id of a lock.
        return [
            path("events/", staff(self.events_view), name="django_tasklock_lock_events"),
            path("health/", staff(self.health_view), name="django_tasklock_lock_health"),
            path("send/", staff(self.send_view), name="django_tasklock_lock_send"),
            *super().get_urls(),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Who may end a lock may hold one."""
        return self.has_delete_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        """Nobody clears what they may not see."""
        may_see = self.has_view_permission(request, obj)
        return may_see and super().has_delete_permission(request, obj)

    # ------------------------------------------------------------------------ the list

    def get_queryset(self, request: HttpRequest) -> Any:
        return read(chosen_alias(request), request.GET.get("q", ""))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LockChangeList]:
        return LockChangeList

    @needs("view")
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = frame(request, "changelist") | (extra_context or {})
        return super().changelist_view(request, context)

    # ------------------------------------------------------------------------ one lock

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Lock:
        """What holds the lock now: the page of a lease that is over tells of the lock."""
        lock = seen_lock(object_id)
        return lock if lock.info else seen_lock(Lock.named(lock.store, lock.name).id)

    change_view = needs("view")(admin.ModelAdmin.change_view)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if lock := context["original"]:
            context |= self._about(request, lock)
        return super().render_change_form(request, context, *args, **kwargs)

    def _about(self, request: HttpRequest, lock: Lock) -> dict[str, Any]:
        """Return what the page of a lock shows."""
        service, info = locks.using(lock.store), lock.info
        said: dict[str, Any] = {"title": printable(lock.name), "subtitle": None}
        said |= history(request, lock.store, name=lock.name)
        said["waiting"] = [waiter_cells(owner) for owner in service.waiters(lock.name)]
        if info is not None:
            said |= {"sentence": sentence(info), "facts": facts(info, self._row(request, info))}
            if info.owner.task_id:
                said["of_task"] = history(request, lock.store, task_id=info.owner.task_id)
        elif held_permits(service, lock.name):
            said["permits_url"] = address(request, "changelist", q=f"{lock.name}#*")
        if self.has_delete_permission(request):
            # Of a permit: to pause the jobs that take one, all of its name are held.
            name = base_of(lock.name, info.owner.slots) if info else lock.name
            said["hold_url"] = address(request, "add", name=name, store=lock.store)
            said["clear_url"] = address(request, "delete", lock.pk) if info else None
        return said

    def _row(self, request: HttpRequest, info: LockInfo) -> str:
        """The row that the task works on, as a link, and its status; "" for none."""
        found = row_if_known(info)
        if found is None:
            return ""
        row, guard = found
        url = row_url(self.admin_site, request, type(row), row.pk)
        words = '<a href="{2}">{0}</a>: {1}' if url else "{}: {}"
        status = printable(str(getattr(row, guard.field)))
        return format_html(words, printable(label_of(row)), status, url)

    @needs("view")
    def history_view(self, request: HttpRequest, object_id: str, *args: Any) -> HttpResponse:
        """Django's button "History" leads to the lock's events."""
        lock = seen_lock(unquote(object_id))
        return HttpResponseRedirect(address(request, "events", q=lock.name, store=lock.store))

    # ------------------------------------------------------------------------ clear

    @admin.action(permissions=["delete"], description=gettext_lazy("Clear selected locks"))
    def delete_selected(self, request: HttpRequest, queryset: Rows) -> HttpResponse | None:
        """Django's own action asks; what its page has named is cleared here, and nothing else."""
        rows, asks = queryset[:MOST_CLEARED], not request.POST.get("post")
        clear(request, [lock for lock in rows if not (asks and lock.info)])
        held = Rows(lock for lock in rows if asks and lock.info)
        if not held:
            return None
        answer = cast("TemplateResponse", delete_selected(self, request, cast("Any", held)))
        words = {"title": gettext("Clear these locks?"), "left_out": len(queryset) - len(rows)}
        answer.context_data = {**(answer.context_data or {}), **words}
        return answer

    @needs("delete")
    def delete_view(self, request: HttpRequest, object_id: str, *args: Any) -> HttpResponse:
        """Django's own view asks; the lease in the address is cleared here, and no later one."""
        lock = seen_lock(unquote(object_id))
        if lock.info and lock.pk != unquote(object_id):
            return HttpResponseRedirect(address(request, "delete", lock.pk))
        if lock.info is None or request.method == "POST":
            clear(request, [lock])
            return HttpResponseRedirect(address(request, "changelist"))
        return super().delete_view(request, object_id, {"title": gettext("Clear this lock?")})

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        return [question_about(lock) for lock in objs if lock.info], {}, set(), []

    # ------------------------------------------------------------------------ hold

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return type("HoldForm", (HoldForm,), {"by": user_name(request)})

    @needs("add")
    def add_view(self, request: HttpRequest, form_url: str = "", *args: Any) -> Any:
        # A store in the same SQLite file could not write during a transaction.
        return add_without_transaction(self, request, form_url, {"title": gettext("Hold a lock")})

    def save_model(self, request: HttpRequest, obj: Lock, form: Any, change: bool) -> None:
        """The form has held it."""

    def response_add(self, request: HttpRequest, obj: Lock, *args: Any) -> HttpResponse:
        words = gettext("“%(name)s” is held: the messages of tasks that need it wait.")
        messages.success(request, words % {"name": printable(obj.name)})
        return HttpResponseRedirect(address(request, "change", obj.pk))

    # ------------------------------------------------------------------------ the other tabs

    @needs("view")
    def events_view(self, request: HttpRequest) -> HttpResponse:
        """What happened to the locks of a store. Raises `PermissionDenied`."""
        query = request.GET.get("q", "").strip()
        found = history(request, chosen_alias(request), query)
        return self._page(request, "events", {"query": query, **found})

    @needs("view")
    def health_view(self, request: HttpRequest) -> HttpResponse:
        """What the doctor finds, in all stores. Raises `PermissionDenied`."""
        found = findings(request, self.admin_site, may_clear=self.has_delete_permission(request))
        return self._page(request, "health", found)

    @needs("delete")
    def send_view(self, request: HttpRequest) -> HttpResponse:
        """Send lost rows again, or end reservations. Raises `PermissionDenied`."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if "job" in request.POST:
            end_reservations(request)
        else:
            send_again(request, self.admin_site)
        return HttpResponseRedirect(address(request, "health"))

    def _page(self, request: HttpRequest, view: str, context: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        said = self.admin_site.each_context(request) | {"opts": self.opts, "media": self.media}
        said |= frame(request, view) | context
        return TemplateResponse(request, f"admin/django_tasklock/lock/{view}.html", said)
