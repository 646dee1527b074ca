"""The list as JSON, for the page that keeps itself up to date."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.templatetags.admin_list import pagination, results
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, JsonResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, path

from ..exceptions import InvalidLockConfig, TaskLockError
from .changelist import LockChangeList
from .clear import ClearingAdmin
from .seen import identity
from .shelf import problem_of

__all__ = ["LiveAdmin"]


class LiveAdmin(ClearingAdmin):
    """The part of `LockAdmin` that answers the page's own script."""

    def get_urls(self) -> list[URLPattern]:
        live = path(
            "live/",
            self.admin_site.admin_view(self.live_view),
            name=f"{self.opts.app_label}_{self.opts.model_name}_live",
        )
        return [live, *super().get_urls()]

    def get_preserved_filters(self, request: HttpRequest) -> str:
        match = request.resolver_match
        if match and match.url_name == f"{self.opts.app_label}_{self.opts.model_name}_live":
            # Its query string is the list's own, and so are its links.
            return urlencode({"_changelist_filters": request.GET.urlencode()})
        return super().get_preserved_filters(request)

    def live_view(self, request: HttpRequest) -> JsonResponse:
        """The rows of the list that has the same query string."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            changelist: Any = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return self._answer({"rows": [], "problems": [], "gone": True})
        except (TaskLockError, InvalidLockConfig) as error:
            return self._answer({"problems": [problem_of(error)]})
        assert isinstance(changelist, LockChangeList)
        changelist.formset = None  # nothing is edited in the list
        rows = zip(changelist.result_list, results(changelist), strict=True)
        return self._answer(
            {
                "rows": [
                    {"id": identity(lock), "cells": [str(cell) for cell in cells]}
                    for lock, cells in rows
                ],
                "count": changelist.result_count,
                "pagination": render_to_string(
                    "admin/pagination.html", pagination(changelist), request
                ),
                "problems": changelist.problems,
            }
        )

    @staticmethod
    def _answer(said: dict[str, Any]) -> JsonResponse:
        return JsonResponse(said, headers={"Cache-Control": "no-store"})
