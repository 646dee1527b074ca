"""The three pages as tabs, with counts, and their addresses."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from django.contrib.admin.utils import quote
from django.db import Error as DatabaseError
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext

from ..exceptions import InvalidLockConfig
from ..operators.doctor import diagnose
from ..stores import stores
from .reading import NOT_KNOWN, Reading

MOST_EVENTS, MOST_FINDINGS = 100, 200  # of one page
# The doctor asks the stores a lot: a process shows the number that it has found for this time.
FINDINGS_SECONDS = 60.0
_findings: dict[str, tuple[float, str | None]] = {}


def aliases() -> list[str]:
    """Return the aliases of all stores; none if the setting is wrong."""
    try:
        return list(stores)
    except InvalidLockConfig:
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
    url = reverse(f"admin:django_tasklock_lock_{view}", args=[*map(quote, args)], current_app=site)
    return f"{url}?{urlencode(query)}" if query else url


def tabs(request: HttpRequest, chosen: str, reading: Reading) -> list[dict[str, Any]]:
    """Return the tabs, of the store that was read. A count is None where it is not known; events
    are not counted."""
    counts = (
        (gettext("Locks"), "changelist", None if reading.total is None else f"{reading.total:,}"),
        (gettext("Events"), "events", None),
        # In an outage each further question would cost a timeout.
        (gettext("Health"), "health", None if reading.silent else _count_findings()),
    )
    return [
        {"label": label, "url": address(request, view), "count": count, "chosen": view == chosen}
        for label, view, count in counts
    ]


def counted(findings: int | None) -> None:
    """Keep how many findings there are; None if that is not known."""
    said = f"{MOST_FINDINGS}+" if (findings or 0) > MOST_FINDINGS else str(findings)
    _findings["count"] = time.monotonic(), None if findings is None else said


def _count_findings() -> str | None:
    at, _ = _findings.get("count", (float("-inf"), None))
    if time.monotonic() - at > FINDINGS_SECONDS:
        try:
            counted(sum(1 for _ in islice(diagnose(messages=False), MOST_FINDINGS + 1)))
        except (*NOT_KNOWN, DatabaseError):
            counted(None)
    return _findings["count"][1]
