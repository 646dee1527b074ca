"""What the admin's pages are made of: cells of locks, tasks and moments, tabs, and addresses."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.words import age, duration, printable
from ..conf import task_url
from ..exceptions import InvalidLockConfig
from ..models import Lock
from ..operators.events import moment
from ..operators.holders import Holder, holder_of, who
from ..stores import stores

# Of a task's name, on both sides of its cut: it tells little else than its beginning and its end.
HALF_CHARACTERS = 18
# Whose lease is renewed, if it is one that is renewed.
RENEWED = (Holder.ALIVE, Holder.UNKNOWN)
LABELS = {
    "changelist": gettext_lazy("Locks"),
    "events": gettext_lazy("Events"),
    "health": gettext_lazy("Health"),
}


def shortened(text: str) -> SafeString:
    """Return text that was cut in the middle, with all of it on hover."""
    text = cut = printable(text)
    if len(text) > 2 * HALF_CHARACTERS:
        cut = f"{text[:HALF_CHARACTERS]}…{text[-HALF_CHARACTERS:]}"
    words = '<span class="tasklock-task" title="{}">{}</span>' if text else ""
    return format_html(words, text, cut)


def passed(since: datetime) -> SafeString:
    """Return the time since a moment, which goes on with JavaScript."""
    seconds = age(since)
    words = '<time data-tasklock-age="{}">{}</time>'
    return format_html(words, f"{seconds:.3f}", duration(seconds))


def task_link(task_id: str | None) -> str:
    """Return a task id, as a link where ``TASKLOCK_TASK_URL`` says so; "" for None."""
    text = printable(task_id or "")
    with suppress(InvalidLockConfig):  # A system check reports it.
        if task_id and (url := task_url(task_id)):
            return format_html('<a href="{}" rel="noreferrer">{}</a>', url, text)
    return text


def row_url(site: admin.AdminSite, request: HttpRequest, model: type[Model], pk: Any) -> str | None:
    """Return the address of a row's page; None if the site has none, or the user may not see it."""
    shown = site.is_registered(model) and site.get_model_admin(model).has_view_permission(request)
    if not shown:
        return None
    view = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return reverse(view, args=[quote(pk)], current_app=site.name)


@admin.display(description=gettext_lazy("held by"))
def held_by(lock: Any) -> str:
    owner, more = lock.info.owner, lock.info.owner.task or lock.info.reason
    words = '<div><span class="tasklock-who">{}</span> {}{}</div>'
    below = format_html("<br>{}", shortened(more)) if more else ""
    return format_html(words, who(owner), _pill(lock.holder), below)


@admin.display(description=gettext_lazy("age"), empty_value="")
def lasts(lock: Any) -> str | None:
    return passed(lock.began) if lock.began else None


@admin.display(description=gettext_lazy("TTL"))
def ttl(lock: Any) -> str:
    is_renewed = lock.info.renewing and lock.holder in RENEWED
    words = gettext("renewed") if is_renewed else _time_left(lock.info, with_bar=True)
    return _labelled(gettext("TTL"), words)


@admin.display(description=gettext_lazy("waiting"), empty_value="")
def waiting(lock: Any) -> str | None:
    info = lock.info
    if not info.waiters:
        return None
    since = "" if info.waiting_since is None else format_html(", {}", passed(info.waiting_since))
    return _labelled(gettext("waiting"), format_html("{}{}", info.waiters, since))


# Of the list of locks, behind their names.
COLUMNS = (held_by, lasts, ttl, waiting)


def _labelled(label: str, cell: str) -> SafeString:
    """A cell with its label: on a phone the column has no heading."""
    return format_html('<span data-tasklock-label="{}">{}</span>', label, cell)


def waiter_cells(owner: Owner) -> tuple[str | None, ...]:
    """Return the cells of one waiter: who, its task, the task's id, and how long it waits."""
    gone = _pill(Holder.GONE) if owner.alive() is False else ""
    waits = None if owner.waiting_since is None else passed(owner.waiting_since)
    place = format_html("{} {}", who(owner), gone)
    return place, printable(owner.task or ""), task_link(owner.task_id), waits


def facts(info: LockInfo, row: str) -> list[tuple[str, str]]:
    """Return what the page of a lock says beside its first sentence: labels and values.

    ``row`` is how the page shows what the task works on.
    """
    found = {
        gettext("state"): gettext(holder_of(info).value),
        gettext("guarded row"): row,
        gettext("TTL"): _time_left(info, with_bar=not info.renewing),
        gettext("acquired"): "" if info.acquired_at is None else moment(info.acquired_at),
        gettext("task"): printable(info.owner.task or ""),
        gettext("task id"): task_link(info.owner.task_id),
        gettext("thread"): printable(info.owner.thread or ""),
        gettext("fence"): "" if info.fence is None else str(info.fence),
        gettext("key"): printable(info.key),
    }
    return [(label, value) for label, value in found.items() if value]


def _time_left(info: LockInfo, *, with_bar: bool) -> str:
    """The TTL when the page was made, and a bar of it; with JavaScript both count down."""
    if info.ttl is None:
        return gettext("never expires")
    left = f"{info.ttl:.3f}"
    words = '<time class="tasklock-ttl" data-tasklock-ttl="{}">{}</time>'
    if with_bar and info.granted is not None:
        words += '<progress class="tasklock-bar" max="{}" value="{}" aria-hidden="true"></progress>'
    return format_html(words, left, duration(info.ttl), max(info.granted or 0, info.ttl), left)


def _pill(holder: Holder) -> str:
    # On a site of several machines most holders are elsewhere, and nothing is to be said of them.
    if holder in (Holder.UNKNOWN, Holder.FOREIGN):
        return ""
    words = '<span class="tasklock-pill tasklock-{}">{}</span>'
    return format_html(words, holder.name.lower(), gettext(holder.value))


def aliases() -> list[str]:
    """Return the aliases of all stores; none if the setting is wrong."""
    with suppress(InvalidLockConfig):
        return list(stores)
    return []


def chosen_alias(request: HttpRequest) -> str:
    """Return the alias of the store that the page is about."""
    return request.GET.get("store") or next(iter(aliases()), "default")


def address(request: HttpRequest, view: str, *args: str, **query: str) -> str:
    """Return the address of one of the admin's views, such as "changelist", on the same store."""
    if "store" in request.GET:
        query = {"store": request.GET["store"], **query}
    assert request.resolver_match is not None
    site = request.resolver_match.namespace
    name, ids = f"admin:django_tasklock_lock_{view}", [*map(quote, args)]
    return reverse(name, args=ids, current_app=site, query=query)


def lock_url(request: HttpRequest, store: str, name: str) -> str:
    """Return the address of the page of a lock, whatever holds it."""
    return address(request, "change", Lock.named(store, name).id, store=store)


def frame(request: HttpRequest, view: str) -> dict[str, Any]:
    """Return what the top of a tab shows."""
    found = aliases()
    return {
        "title": LABELS[view],
        "tabs": [(address(request, each), label, each == view) for each, label in LABELS.items()],
        "stores": [(printable(alias), alias) for alias in found] if len(found) > 1 else [],
        "chosen": chosen_alias(request),
    }
