"""The three pages as tabs, and their addresses."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from .._values.printable import printable
from ..exceptions import InvalidLockConfig
from ..models import Lock
from ..stores import stores

LABELS = {"changelist": _("Locks"), "events": _("Events"), "health": _("Health")}


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
