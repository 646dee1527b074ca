"""Moments and durations as they look on the admin's pages: short, with the full time on hover."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django.utils import timezone as site_timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

__all__ = ["in_full", "moment", "moment_in", "on_hover"]


def in_full(at: datetime) -> str:
    """Return an aware moment to the second, in the site's time zone, as logs have it."""
    try:
        return site_timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S %Z")
    except (OverflowError, ValueError):  # At the end of the year 9999: anybody may have written it.
        return at.isoformat(timespec="seconds")


def moment(at: datetime) -> SafeString:
    """Return an aware moment to the second, for programs too."""
    full = in_full(at)
    return format_html('<time datetime="{}">{}</time>', at.isoformat(timespec="seconds"), full)


def moment_in(seconds: float) -> datetime | None:
    """Return the moment that many seconds from now; None after the year 9999."""
    try:
        return datetime.now(timezone.utc) + timedelta(seconds=seconds)
    except OverflowError:
        return None


def on_hover(at: datetime | None, words: str) -> SafeString | str:
    """Return the attributes of a ``<time>`` that say an aware moment; "" for None.

    ``words`` is a sentence with ``%(time)s``.
    """
    if at is None:
        return ""
    at_second = at.replace(microsecond=0)
    return format_html(
        ' datetime="{}" title="{}"', at_second.isoformat(), words % {"time": in_full(at_second)}
    )
