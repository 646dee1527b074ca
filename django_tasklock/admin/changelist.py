"""Django's own change list over `Rows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest

from .._compat.django import apply_filters, sorted_columns
from .._values.lock_info import LockInfo
from .filters import ENDLESS, LockFilter

if TYPE_CHECKING:
    from .rows import Rows

__all__ = ["LockChangeList"]


class LockChangeList(ChangeList):
    """Filters, searches and sorts `Rows`, without a database query."""

    root_queryset: Rows  # type: ignore[assignment]
    queryset: Rows

    @property
    def problems(self) -> list[str]:
        """A sentence for each store that did not answer, or for a wrong setting."""
        return self.root_queryset.problems

    @property
    def notes(self) -> list[str]:
        """A sentence for each store of which only a part was read."""
        return self.queryset.notes

    @property
    def by_store(self) -> bool:
        """Whether the locks of each store are sorted separately."""
        return self.queryset.by_store

    @property
    def seen(self) -> list[LockInfo]:
        """The locks that this page has read."""
        if self.queryset.looked_at is not None:
            return list(self.queryset.looked_at)
        return [lock.info for lock in self.result_list if lock.info]

    @property
    def refreshes(self) -> bool:
        """Whether the page updates itself: not if each update would walk the whole store."""
        return self.params.get("state") != ENDLESS

    def _get_default_ordering(self) -> list[str]:
        return ["ttl"]

    def _order(self) -> str:
        """The first column of the list that is sorted by, with "-" before it for backwards."""
        for field, backwards in sorted_columns(self):
            if field in ("name", "ttl", "age"):
                return f"-{field}" if backwards else field
        return "ttl"

    def get_queryset(  # type: ignore[override]
        self, request: HttpRequest, exclude_parameters: Any = None
    ) -> Rows:
        apply_filters(self, request)
        specs = [spec for spec in self.filter_specs if isinstance(spec, LockFilter)]
        asked = {spec.parameter: spec.value for spec in specs}
        tests = [test for spec in specs if (test := spec.test())]
        return self.root_queryset.of_store(asked.get("store")).narrowed(
            self.query, tests, self._order(), endless=asked.get("state") == ENDLESS
        )
