"""Links to the admin pages of rows that tasks work on."""

from __future__ import annotations

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse

from .page import LockModelAdmin

__all__ = ["row_url"]


def row_url(model_admin: LockModelAdmin, request: HttpRequest | None, row: Model) -> str | None:
    """Return the address of the row's page; None if this site has none, or if the user of the
    request may not see it."""
    site = model_admin.admin_site
    if request is None or not site.is_registered(type(row)):
        return None
    if not site.get_model_admin(type(row)).has_view_permission(request, row):
        return None
    view = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
    return reverse(view, args=[quote(row.pk)], current_app=site.name)
