"""A small chart of the last hour, made on the server: an inline SVG with a text for those who do
not see it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

__all__ = ["sparkline"]

HEIGHT = 20
GAP = 0.2
"""between two bars, of which each with its gap is 1 wide"""


def sparkline(numbers: Sequence[int], until: datetime, reaches: datetime | None) -> SafeString:
    """Return a bar for each minute: the last of the ``numbers`` is that of the minute that ends
    ``until``. What lies before ``reaches`` is not known, and drawn as such."""
    most = max(numbers, default=0)
    bars = [
        (at + GAP / 2, round(HEIGHT - height, 2), 1 - GAP, round(height, 2))
        for at, number in enumerate(numbers)
        # Of the smallest number something is to be seen.
        if number and (height := max(1.0, HEIGHT * number / most))
    ]
    return format_html(
        '<svg class="tasklock-sparkline" role="img" aria-label="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none" focusable="false"><title>{}</title>{}{}</svg>',
        (said := _words(numbers, most, until)),
        len(numbers),
        HEIGHT,
        said,
        _unknown(len(numbers), until, reaches),
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"/>', bars),
    )


def _words(numbers: Sequence[int], most: int, until: datetime) -> str:
    if not most:
        return gettext("Events by the minute: none.")
    ago = len(numbers) - 1 - max(at for at, number in enumerate(numbers) if number == most)
    minute = timezone.localtime(until - timedelta(minutes=ago))
    return gettext("Events by the minute: %(count)d in all, at most %(most)d, at %(time)s.") % {
        "count": sum(numbers),
        "most": most,
        "time": minute.strftime("%H:%M"),
    }


def _unknown(parts: int, until: datetime, reaches: datetime | None) -> SafeString | str:
    if reaches is None:
        return ""
    known = max(0.0, (until - reaches).total_seconds() / 60)
    width = max(0, parts - 1 - int(known))
    return format_html(
        '<rect class="tasklock-unknown" x="0" y="0" width="{}" height="{}"/>', width, HEIGHT
    )
