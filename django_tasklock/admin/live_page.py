"""The list as JSON, for the page that keeps itself up to date."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.templatetags.admin_list import pagination, results
from django.http import HttpRequest, JsonResponse
from django.template.loader import render_to_string
from django.urls import URLPattern

from ..exceptions import InvalidLockConfig, TaskLockError
from .changelist import LockChangeList
from .page import Page, url_name
from .seen import identity
from .store_reader import problem_of
from .summary import summary_of

__all__ = ["LivePage"]


class LivePage(Page):
    """What the script of the list asks every few seconds."""

    def urls(self) -> list[URLPattern]:
        """Return the URL of the JSON."""
        return [self.path("live/", self.live_view, "live")]

    def preserved_filters(self, request: HttpRequest) -> str | None:
        """Return the filters that links of this page keep; None for a request of another page.

        The query string of this page is the list's own, and so are its links.
        """
        match = request.resolver_match
        if match and match.url_name == url_name(self.model_admin, "live"):
            return urlencode({"_changelist_filters": request.GET.urlencode()})
        return None

    def live_view(self, request: HttpRequest) -> JsonResponse:
        """Return the rows of the list that has the same query string, and its problems.

        Raises `PermissionDenied`.
        """
        self.require_view(request)
        try:
            changelist: Any = self.model_admin.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return _answer({"rows": [], "problems": [], "gone": True})
        except (TaskLockError, InvalidLockConfig) as error:
            return _answer({"problems": [problem_of(error)]})
        assert isinstance(changelist, LockChangeList)
        changelist.formset = None  # nothing is edited in the list
        rows = zip(changelist.result_list, results(changelist), strict=True)
        return _answer(
            {
                "rows": [
                    {"id": identity(lock), "cells": [str(cell) for cell in cells]}
                    for lock, cells in rows
                ],
                "count": changelist.result_count,
                "pagination": _pagination(changelist, request),
                "problems": changelist.problems,
                # As they are in the ids of the rows.
                "silent": [quote(alias, safe="") for alias in changelist.silent],
                "as_of": render_to_string(
                    "admin/django_tasklock/lock/as_of.html", {"cl": changelist}
                ),
                "summary": summary_of(changelist, request, self.url_of(request, "contention")),
            }
        )


def _pagination(changelist: LockChangeList, request: HttpRequest) -> str:
    """What the list's own template has in its block of that name."""
    parts = []
    if changelist.not_counted:
        template = "admin/django_tasklock/lock/not_counted.html"
        parts.append(render_to_string(template, {"cl": changelist}, request))
    if changelist.result_count or not changelist.not_counted:
        shown: Any = pagination(changelist)
        parts.append(render_to_string("admin/pagination.html", shown, request))
    return "".join(parts)


def _answer(content: dict[str, Any]) -> JsonResponse:
    return JsonResponse(content, headers={"Cache-Control": "no-store"})
