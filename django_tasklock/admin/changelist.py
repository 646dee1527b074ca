"""Django's own change list over `Rows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest

from ..lease import LockInfo
from .filters import ENDLESS, Narrowing

if TYPE_CHECKING:
    from .rows import Rows

__all__ = ["LockChangeList"]


class LockChangeList(ChangeList):
    """Filters, searches and sorts `Rows` as they can be: nothing here is a query of a database."""

    root_queryset: Rows  # type: ignore[assignment]
    queryset: Rows

    @property
    def problems(self) -> list[str]:
        """A sentence for each store that had no answer, or for a setting that names none."""
        return self.root_queryset.problems

    @property
    def notes(self) -> list[str]:
        """A sentence for each store that was not looked at as a whole."""
        return self.queryset.notes

    @property
    def by_store(self) -> bool:
        """Whether the stores' locks are sorted each by themselves."""
        return self.queryset.by_store

    @property
    def seen(self) -> list[LockInfo]:
        """The locks that this page has read."""
        if self.queryset.looked_at is not None:
            return list(self.queryset.looked_at)
        return [lock.info for lock in self.result_list if lock.info]

    @property
    def refreshes(self) -> bool:
        """Whether the page asks again by itself: not where that walks the whole store."""
        return self.params.get("state") != ENDLESS

    def _get_default_ordering(self) -> list[str]:
        return ["ttl"]

    def _order(self) -> str:
        """The first column of the list that is sorted by, with "-" before it for backwards."""
        for index, direction in self.get_ordering_field_columns().items():
            if 0 <= index < len(self.list_display):
                field = self.get_ordering_field(self.list_display[index])
                if field in ("name", "ttl", "age"):
                    return f"-{field}" if direction == "desc" else str(field)
        return "ttl"

    def get_queryset(  # type: ignore[override]
        self, request: HttpRequest, exclude_parameters: Any = None
    ) -> Rows:
        (
            self.filter_specs,
            self.has_filters,
            unknown,
            _may_have_duplicates,
            self.has_active_filters,
        ) = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters(unknown)
        self.clear_all_filters_qs = self.get_query_string(remove=self.get_filters_params())
        specs = [spec for spec in self.filter_specs if isinstance(spec, Narrowing)]
        asked = {spec.parameter: spec.value for spec in specs}
        tests = [test for spec in specs if (test := spec.test())]
        return self.root_queryset.of_store(asked.get("store")).narrowed(
            self.query, tests, self._order(), endless=asked.get("state") == ENDLESS
        )
