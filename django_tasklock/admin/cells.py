"""How locks, tasks and moments look on the admin's pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone as site_timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from .._values.describe import age, duration, printable
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..conf import task_url
from ..exceptions import InvalidLockConfig
from ..models import Lock
from ..operators.holders import LABELS, Holder, holder_of, who

__all__ = [
    "COLUMNS",
    "facts",
    "moment",
    "passed",
    "row_url",
    "shortened",
    "task_link",
    "waiter_cells",
]

HALF_CHARACTERS = 20
"""of a task's name that stay on both sides of its cut"""


def shortened(text: str) -> SafeString:
    """Return text that was cut in the middle, with all of it on hover."""
    text = printable(text)
    cut = text
    if len(text) > 2 * HALF_CHARACTERS:
        cut = f"{text[:HALF_CHARACTERS]}…{text[-HALF_CHARACTERS:]}"
    return format_html('<span class="tasklock-task" title="{}">{}</span>', text, cut)


def moment(at: datetime) -> str:
    """Return an aware moment to the second, in the site's time zone."""
    try:
        return site_timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):  # At the end of the year 9999: anybody may have written it.
        return at.isoformat(timespec="seconds")


def passed(since: datetime) -> SafeString:
    """Return the time since a moment, which goes on with JavaScript."""
    seconds = age(since)
    return format_html(
        '<time data-tasklock-age="{}">{}</time>', f"{seconds:.3f}", duration(seconds)
    )


def task_link(task_id: str | None) -> str:
    """Return a task id, as a link where ``TASKLOCK_TASK_URL`` says so; "" for None."""
    if not task_id:
        return ""
    try:
        url = task_url(task_id)
    except InvalidLockConfig:  # A system check reports it.
        url = None
    if url is None:
        return printable(task_id)
    return format_html('<a href="{}" rel="noreferrer">{}</a>', url, printable(task_id))


def row_url(site: admin.AdminSite, request: HttpRequest, model: type[Model], pk: Any) -> str | None:
    """Return the address of a row's page; None if the site has none, or the user may not see it."""
    if not site.is_registered(model) or not site.get_model_admin(model).has_view_permission(
        request
    ):
        return None
    view = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return reverse(view, args=[quote(pk)], current_app=site.name)


@admin.display(description=gettext_lazy("name"))
def name(lock: Lock) -> str:
    return printable(lock.name)


@admin.display(description=gettext_lazy("TTL"))
def ttl(lock: Lock) -> str:
    info = _info_of(lock)
    return format_html("{}{}", _time_left(info), _bar(info))


@admin.display(description=gettext_lazy("held by"))
def held_by(lock: Lock) -> str:
    info = _info_of(lock)
    more = info.owner.task or info.reason
    return format_html(
        '<span class="tasklock-who">{}</span> {}{}',
        who(info.owner),
        _pill(holder_of(info)),
        format_html("<br>{}", shortened(more)) if more else "",
    )


@admin.display(description=gettext_lazy("waiting"), empty_value="")
def waiting(lock: Lock) -> str | None:
    info = _info_of(lock)
    if not info.waiters:
        return None
    since = "" if info.waiting_since is None else format_html(", {}", passed(info.waiting_since))
    # On a phone the column has no heading.
    words = '<span data-tasklock-label="{}">{}{}</span>'
    return format_html(words, gettext("waiting"), info.waiters, since)


COLUMNS = (name, ttl, held_by, waiting)


def waiter_cells(owner: Owner) -> tuple[str | None, ...]:
    """Return the cells of one waiter: who, its task, the task's id, and how long it waits."""
    gone = _pill(Holder.GONE) if owner.alive() is False else ""
    waits = None if owner.waiting_since is None else passed(owner.waiting_since)
    place = format_html("{} {}", who(owner), gone)
    return place, printable(owner.task or ""), task_link(owner.task_id), waits


def facts(info: LockInfo) -> list[tuple[str, str]]:
    """Return what the page of a lock says beside its first sentence: labels and values."""
    renewing = {True: gettext("renewed"), False: gettext("not renewed")}
    found = {
        gettext("TTL"): _time_left(info),
        gettext("renewed"): "" if info.renewing is None else renewing[info.renewing],
        gettext("acquired"): "" if info.acquired_at is None else moment(info.acquired_at),
        gettext("task"): printable(info.owner.task or ""),
        gettext("task id"): task_link(info.owner.task_id),
        gettext("thread"): printable(info.owner.thread or ""),
        gettext("fence"): "" if info.fence is None else str(info.fence),
        gettext("key"): printable(info.key),
    }
    return [(label, value) for label, value in found.items() if value]


def _info_of(lock: Lock) -> LockInfo:
    assert lock.info is not None, "only what a store said is shown"
    return lock.info


def _time_left(info: LockInfo) -> str:
    """The TTL when the page was made; with JavaScript it counts down."""
    if info.ttl is None:
        return gettext("never expires")
    words = '<time class="tasklock-ttl" data-tasklock-ttl="{}">{}</time>'
    return format_html(words, f"{info.ttl:.3f}", duration(info.ttl))


def _bar(info: LockInfo) -> str:
    """A bar of what is left of the lease; the number beside it is for screen readers."""
    if info.ttl is None or info.granted is None:
        return ""
    words = '<progress class="tasklock-bar" max="{}" value="{}" aria-hidden="true"></progress>'
    return format_html(words, f"{max(info.granted, info.ttl):.3f}", f"{info.ttl:.3f}")


def _pill(holder: Holder) -> str:
    # On a site of several machines most holders are elsewhere, and nothing is to be said of them.
    if holder in (Holder.UNKNOWN, Holder.FOREIGN):
        return ""
    words = '<span class="tasklock-pill tasklock-{}">{}</span>'
    return format_html(words, holder.name.lower(), LABELS[holder])
