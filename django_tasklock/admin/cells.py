"""How a lock's fields look on the admin's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from ..describe import age, duration, place, printable
from ..guarded import label_of, row_if_known
from ..lease import LockInfo
from ..models import Lock
from ..owner import Owner
from ..work import CeleryMissing
from .seen import identity
from .shelf import problem_of

if TYPE_CHECKING:
    LockModelAdmin = admin.ModelAdmin[Lock]
else:
    LockModelAdmin = admin.ModelAdmin

__all__ = ["ASKED_BY", "LockCells", "waiter_cells"]

ASKED_BY = "asked_by"
"""where a lock has the request that it is shown to: Django calls a cell without it"""


def info_of(lock: Lock) -> LockInfo:
    assert lock.info is not None, "only what a store said is shown"
    return lock.info


def text(value: object) -> str | None:
    return None if value is None else printable(value)


class LockCells(LockModelAdmin):
    """One method a field. An empty one shows the admin's own dash."""

    @admin.display(description=gettext_lazy("TTL"), ordering="ttl")
    def ttl(self, lock: Lock) -> str:
        """Counts down where there is JavaScript, and is right when it was drawn where not."""
        info = info_of(lock)
        seconds = info.ttl
        if seconds is None:
            return format_html(
                '<span data-tasklock-row="{}">{}</span>', identity(lock), gettext("never expires")
            )
        return format_html(
            '<span class="tasklock-ttl" data-tasklock-row="{}" data-tasklock-label="{}"'
            ' data-tasklock-ttl="{}" data-tasklock-over="{}">{}</span>{}',
            identity(lock),
            gettext("TTL"),
            f"{seconds:.3f}",
            gettext("expired"),
            duration(seconds),
            bar(seconds, info.granted),
        )

    @admin.display(description=gettext_lazy("renewed"))
    def renewing(self, lock: Lock) -> str | None:
        """Whether the holder extends it by itself, as it said when it took the lock."""
        renewing = info_of(lock).renewing
        if renewing is None:
            return None
        return gettext("renewed") if renewing else gettext("not renewed")

    @admin.display(description=gettext_lazy("age"), ordering="age")
    def age(self, lock: Lock) -> str | None:
        acquired_at = info_of(lock).acquired_at
        if acquired_at is None:
            return None
        seconds = age(acquired_at)
        return format_html(
            '<span class="tasklock-age" data-tasklock-label="{}" data-tasklock-age="{}">{}</span>',
            gettext("age"),
            f"{seconds:.3f}",
            duration(seconds),
        )

    @admin.display(description=gettext_lazy("held by"))
    def held_by(self, lock: Lock) -> str:
        info = info_of(lock)
        where = place(info.owner)
        if not where:
            return gettext("other code (its key was not set by a lease)")
        return format_html('<span class="tasklock-place">{}</span>{}', where, life(info.owner))

    @admin.display(description=gettext_lazy("task"))
    def task(self, lock: Lock) -> str | None:
        return text(info_of(lock).owner.task)

    @admin.display(description=gettext_lazy("task id"))
    def task_id(self, lock: Lock) -> str | None:
        return text(info_of(lock).owner.task_id)

    @admin.display(description=gettext_lazy("guarded row"))
    def row(self, lock: Lock) -> str | None:
        """The row that its task works on; what it is called, and a link to its page, for those
        who may see that page."""
        try:
            row = row_if_known(info_of(lock))
        except CeleryMissing as error:
            return problem_of(error)
        if row is None:
            return None
        if not self.may_view(vars(lock).get(ASKED_BY), row):
            return printable(label_of(row))
        view = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
        url = reverse(view, args=[quote(row.pk)], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, printable(row))

    def may_view(self, request: HttpRequest | None, row: Model) -> bool:
        """Whether this site has a page of the row, and shows it to whoever asks."""
        if request is None or not self.admin_site.is_registered(type(row)):
            return False
        return self.admin_site.get_model_admin(type(row)).has_view_permission(request, row)

    @admin.display(description=gettext_lazy("thread"))
    def thread(self, lock: Lock) -> str | None:
        return text(info_of(lock).owner.thread)

    @admin.display(description=gettext_lazy("acquired"))
    def acquired(self, lock: Lock) -> str | None:
        """To the second, in the site's time zone, as logs have it."""
        acquired_at = info_of(lock).acquired_at
        if acquired_at is None:
            return None
        return timezone.localtime(acquired_at).strftime("%Y-%m-%d %H:%M:%S %Z")

    @admin.display(description=gettext_lazy("fence"))
    def fence(self, lock: Lock) -> str | None:
        return text(info_of(lock).fence)

    @admin.display(description=gettext_lazy("waiting"))
    def waiters(self, lock: Lock) -> str | None:
        waiters = info_of(lock).waiters
        if waiters is None:
            return None
        return format_html('<span data-tasklock-label="{}">{}</span>', gettext("waiting"), waiters)

    @admin.display(description=gettext_lazy("key"))
    def key(self, lock: Lock) -> str:
        return printable(info_of(lock).key)


def bar(seconds: float, granted: float | None) -> SafeString | str:
    """What is left of the lease, beside the number that says the same."""
    if granted is None:
        return ""
    return format_html(
        '<progress class="tasklock-bar" max="{}" value="{}" aria-hidden="true"></progress>',
        f"{max(granted, seconds):.3f}",
        f"{seconds:.3f}",
    )


def waiter_cells(owner: Owner) -> tuple[str | None, ...]:
    """What is shown of one who waits; None where nothing is known."""
    return text(owner.host), text(owner.pid), life(owner), text(owner.task), text(owner.task_id)


def life(owner: Owner) -> SafeString | str:
    """Whether the process lives, in a word; nothing where that cannot be known from here."""
    alive = owner.alive()
    if alive is None:
        return ""
    state, word = ("alive", gettext("alive")) if alive else ("gone", gettext("gone"))
    return format_html(' <span class="tasklock-life tasklock-{}">{}</span>', state, word)
