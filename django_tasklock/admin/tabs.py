"""The three pages as tabs, with counts, and their addresses."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext

from ..exceptions import InvalidLockConfig
from ..stores import stores
from .reading import Reading

MOST_EVENTS, MOST_FINDINGS = 100, 200  # of one page


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


def tabs(
    request: HttpRequest, chosen: str, reading: Reading, findings: int | None
) -> list[dict[str, Any]]:
    """Return the tabs, of the store that was read, with the number of its locks, and on the page
    Health that of the doctor's ``findings``. A count is None where it is not known; events are not
    counted."""
    many = findings is not None and findings > MOST_FINDINGS
    counts = (
        (gettext("Locks"), "changelist", None if reading.total is None else f"{reading.total:,}"),
        (gettext("Events"), "events", None),
        (gettext("Health"), "health", f"{MOST_FINDINGS}+" if many else findings),
    )
    return [
        {"label": label, "url": address(request, view), "count": count, "chosen": view == chosen}
        for label, view, count in counts
    ]
