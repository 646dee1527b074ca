"""What Django's admin does not document and we use.

Read in Django 5.2.19; the other releases that we support have it too. Four of the names below are
overridden in our classes, and Django calls them: a release that renames one would call its own
method instead, and no error would say so.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.http import HttpRequest

__all__ = [
    "CHANGE_LIST_OVERRIDES",
    "MODEL_ADMIN_OVERRIDES",
    "QUERYSET_OVERRIDES",
    "apply_filters",
    "sorted_columns",
]

CHANGE_LIST_OVERRIDES = ("_get_default_ordering", "get_queryset")
"""methods of ``ChangeList`` that `LockChangeList` overrides: no database sorts its rows"""
MODEL_ADMIN_OVERRIDES = ("_get_obj_does_not_exist_redirect",)
"""methods of ``ModelAdmin`` that `LockAdmin` overrides: that a lock is not held is no error"""
QUERYSET_OVERRIDES = ("_clone",)
"""methods of a queryset that `Rows` has, because ``ChangeList.get_results`` calls them"""


def apply_filters(change_list: Any, request: HttpRequest) -> None:
    """Set what ``ChangeList.get_queryset`` sets of the filters, and do not touch a queryset.

    Raises `IncorrectLookupParameters` for a parameter that no filter knows.
    """
    (
        change_list.filter_specs,
        change_list.has_filters,
        unknown,
        _may_have_duplicates,
        change_list.has_active_filters,
    ) = change_list.get_filters(request)
    if unknown:
        raise IncorrectLookupParameters(unknown)
    change_list.clear_all_filters_qs = change_list.get_query_string(
        remove=change_list.get_filters_params()
    )


def sorted_columns(change_list: Any) -> list[tuple[str, bool]]:
    """The fields that the list is sorted by, in order, each with whether it is backwards.

    Uses ``get_ordering_field_columns``, whose values are "asc" and "desc".
    """
    return [
        (str(change_list.get_ordering_field(change_list.list_display[index])), order == "desc")
        for index, order in change_list.get_ordering_field_columns().items()
        if 0 <= index < len(change_list.list_display)
    ]
