"""How a lock's fields look on the admin's pages."""

from __future__ import annotations

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from .._values.describe import age, duration, place, printable
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..models import Lock
from ..operators.guarded import label_of, row_if_known
from ..operators.work import CeleryMissing
from .cell import cell, info_of, text
from .moments import in_full, moment_in, on_hover
from .page import LockModelAdmin
from .row_links import row_url
from .seen import identity
from .store_reader import problem_of
from .task_links import task_link

__all__ = ["ASKED_BY", "LockCells", "operator_words", "waiter_cells"]

ASKED_BY = "asked_by"
"""attribute of a lock with the request that it is shown to: Django calls a cell without it"""


class LockCells(LockModelAdmin):
    """The fields of a lock: Django looks them up by name on the admin, so they are its methods.

    Each takes a lock with its ``info``, and returns text or HTML; None shows the admin's own dash.
    """

    @cell(gettext_lazy("TTL"), ordering="ttl")
    def ttl(self, lock: Lock) -> str:
        """The TTL when the page was made; with JavaScript it counts down."""
        info = info_of(lock)
        seconds = info.ttl
        if seconds is None:
            return format_html(
                '<span data-tasklock-row="{}">{}</span>', identity(lock), gettext("never expires")
            )
        return format_html(
            '<time class="tasklock-ttl"{} data-tasklock-row="{}" data-tasklock-label="{}"'
            ' data-tasklock-ttl="{}" data-tasklock-over="{}">{}</time>{}',
            on_hover(moment_in(seconds), gettext("expires at %(time)s")),
            identity(lock),
            gettext("TTL"),
            f"{seconds:.3f}",
            over_words(info),
            duration(seconds),
            bar(seconds, info.granted),
        )

    @cell(gettext_lazy("renewed"))
    def renewing(self, lock: Lock) -> str | None:
        """Whether the holder renews it, as recorded when it took the lock."""
        renewing = info_of(lock).renewing
        if renewing is None:
            return None
        return gettext("renewed") if renewing else gettext("not renewed")

    @cell(gettext_lazy("age"), ordering="age")
    def age(self, lock: Lock) -> str | None:
        return passed(info_of(lock).acquired_at, gettext("age"), gettext("acquired at %(time)s"))

    @cell(gettext_lazy("held by"))
    def held_by(self, lock: Lock) -> str:
        info = info_of(lock)
        if info.held_by is not None:
            reason = format_html(
                '<span class="tasklock-reason" title="{0}">{0}</span>', text(info.reason) or ""
            )
            who = operator_words(info.owner)
            return format_html('<span class="tasklock-place">{}</span> {}', who, reason)
        where = place(info.owner)
        if not where:
            return gettext("other code (its key was not set by a lease)")
        state = pill("cooling", gettext("cooling")) if info.cooling else life(info.owner)
        return format_html(
            '<span class="tasklock-place" title="{0}">{0}</span>{1}{2}',
            where,
            state,
            permit_words(info),
        )

    @cell(gettext_lazy("task"))
    def task(self, lock: Lock) -> str | None:
        said = text(info_of(lock).owner.task)
        # The list shortens it where it has no room.
        return said and format_html('<span title="{0}">{0}</span>', said)

    @cell(gettext_lazy("task id"))
    def task_id(self, lock: Lock) -> str | None:
        task_id = info_of(lock).owner.task_id
        said = task_link(task_id)
        return said and format_html('<span title="{}">{}</span>', text(task_id), said)

    @cell(gettext_lazy("guarded row"))
    def row(self, lock: Lock) -> str | None:
        """The row that its task works on; its text and a link for users who may see its page."""
        try:
            row = row_if_known(info_of(lock))
        except CeleryMissing as error:
            return problem_of(error)
        if row is None:
            return None
        url = row_url(self, vars(lock).get(ASKED_BY), row)
        if url is None:
            return printable(label_of(row))
        return format_html('<a href="{}">{}</a>', url, printable(row))

    @cell(gettext_lazy("thread"))
    def thread(self, lock: Lock) -> str | None:
        return text(info_of(lock).owner.thread)

    @cell(gettext_lazy("acquired"))
    def acquired(self, lock: Lock) -> str | None:
        """To the second, in the site's time zone, as logs have it."""
        acquired_at = info_of(lock).acquired_at
        if acquired_at is None:
            return None
        return in_full(acquired_at)

    @cell(gettext_lazy("fence"))
    def fence(self, lock: Lock) -> str | None:
        return text(info_of(lock).fence)

    @cell(gettext_lazy("waiting"), ordering="waiters")
    def waiters(self, lock: Lock) -> str | None:
        waiters = info_of(lock).waiters
        if waiters is None:
            return None
        return format_html('<span data-tasklock-label="{}">{}</span>', gettext("waiting"), waiters)

    @cell(gettext_lazy("wait"), ordering="wait")
    def longest_wait(self, lock: Lock) -> str | None:
        """For how long the next waiter waits, which is normally the longest wait."""
        return passed(
            info_of(lock).waiting_since, gettext("longest wait"), gettext("waits since %(time)s")
        )

    @cell(gettext_lazy("longest wait"))
    def wait_by_name(self, lock: Lock) -> str | None:
        """The same on the lock's own page, where there is room for its name."""
        return self.longest_wait(lock)

    @cell(gettext_lazy("key"))
    def key(self, lock: Lock) -> str:
        return copied(printable(info_of(lock).key))

    @cell(gettext_lazy("name"))
    def full_name(self, lock: Lock) -> str:
        """The name on the lock's own page, to be copied."""
        return copied(lock.name)


def passed(since: datetime | None, label: str, words: str) -> SafeString | None:
    """Return the time since a moment, which goes on with JavaScript; None for None.

    ``label`` is said before it where no heading is seen, and ``words``, with ``%(time)s``, on
    hover.
    """
    if since is None:
        return None
    seconds = age(since)
    return format_html(
        '<time class="tasklock-age"{} data-tasklock-label="{}" data-tasklock-age="{}">{}</time>',
        on_hover(since, words),
        label,
        f"{seconds:.3f}",
        duration(seconds),
    )


def over_words(info: LockInfo) -> str:
    """Return what to say after the TTL: it counts down also where nobody asks the store again."""
    if info.cooling or info.held_by is not None:
        return gettext("expired")  # Nobody extends these.
    if info.renewing is False:
        return gettext("expired or extended")
    return gettext("expired or renewed")


def copied(words: str) -> SafeString:
    """Return text that gets a button to copy it; one that is not printable is copied as shown."""
    return format_html('<span class="tasklock-place" data-tasklock-copy="{0}">{0}</span>', words)


def bar(seconds: float, granted: float | None) -> SafeString | str:
    """Return a bar of what is left of the lease; the number beside it is for screen readers."""
    if granted is None:
        return ""
    return format_html(
        '<progress class="tasklock-bar" max="{}" value="{}" aria-hidden="true"></progress>',
        f"{max(granted, seconds):.3f}",
        f"{seconds:.3f}",
    )


def permit_words(info: LockInfo) -> SafeString | str:
    """Return which permit of how many the lock is, or for what its holder waits; "" for others."""
    if info.slot is not None:
        words = gettext("permit %(slot)s of %(slots)s")
        said = words % {"slot": info.slot, "slots": info.owner.slots}
    elif info.owner.waits_for is not None:
        words = gettext("the first who waits for a permit of %(name)s")
        said = words % {"name": printable(info.owner.waits_for)}
    else:
        return ""
    return format_html(' <span class="tasklock-reason">{}</span>', said)


def operator_words(owner: Owner) -> str:
    """Return what to call an operator who holds a lock, or waits for it."""
    if not owner.held_by:
        return gettext("an operator")
    return gettext("operator %(name)s") % {"name": printable(owner.held_by)}


def waiter_cells(owner: Owner) -> tuple[str | None, ...]:
    """Return the cells of one waiter; None where nothing is known."""
    where = text(owner.host) if owner.held_by is None else operator_words(owner)
    waits = passed(owner.waiting_since, gettext("waits"), gettext("waits since %(time)s"))
    return waits, where, text(owner.pid), life(owner), text(owner.task), task_link(owner.task_id)


def life(owner: Owner) -> SafeString | str:
    """Return "alive" or "gone" for the process, or that it has detached the lease; "" where that is
    not known on this machine."""
    if owner.detached:
        word = gettext("detached: waits for its run")
        return format_html(' <span class="tasklock-life tasklock-detached">{}</span>', word)
    alive = owner.alive()
    if alive is None:
        return ""
    state, word = ("alive", gettext("alive")) if alive else ("gone", gettext("gone"))
    return pill(state, word)


def pill(state: str, word: str) -> SafeString:
    """Return the word for a state, in the colours of that state."""
    return format_html(' <span class="tasklock-life tasklock-{}">{}</span>', state, word)
