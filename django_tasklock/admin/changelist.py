"""Django's own change list over `Rows`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.utils.timezone import localtime

from .._compat.django import apply_filters, sorted_columns
from .._values.lock_info import LockInfo
from ..stores.criteria import Criteria
from .filters import ENDLESS, LockFilter
from .rows import Asked

if TYPE_CHECKING:
    from .rows import Rows

__all__ = ["LockChangeList"]

MAX_LOCKS_REFRESHED = 10_000
"""in stores with more locks, what is searched, filtered or sorted does not update itself"""


class LockChangeList(ChangeList):
    """Filters, searches and sorts `Rows`, without a database query."""

    root_queryset: Rows  # type: ignore[assignment]
    queryset: Rows

    @property
    def problems(self) -> list[str]:
        """A sentence for each store that did not answer, or for a wrong setting."""
        # One of the two has the reader of a store that only the address of the page names.
        return list(dict.fromkeys([*self.root_queryset.problems, *self.queryset.problems]))

    @property
    def silent(self) -> list[str]:
        """The aliases of the stores that did not answer."""
        return self.root_queryset.silent

    @property
    def not_counted(self) -> bool:
        """Whether there may be locks that the count of the page leaves out."""
        return bool(self.problems)

    @property
    def notes(self) -> list[str]:
        """A sentence for each store that has more matching locks than were counted."""
        return list(self.queryset.notes)

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
        """Whether the page updates itself: not if each update would walk through a large store."""
        if self.queryset.keeps_searches:
            return True
        if self.params.get("state") == ENDLESS:
            return False
        return self.queryset.looked_at is None or self.root_queryset.count() <= MAX_LOCKS_REFRESHED

    @property
    def searched_at(self) -> datetime | None:
        """When it was looked which locks match; None if that was for this page."""
        at = self.queryset.searched_at
        # In the site's time zone, which the template's filter leaves alone with USE_TZ off.
        return None if at is None else localtime(datetime.fromtimestamp(at, tz=timezone.utc))

    def _get_default_ordering(self) -> list[str]:
        return ["ttl"]

    def _order(self) -> str:
        """The first column of the list that is sorted by, with "-" before it for backwards."""
        for field, backwards in sorted_columns(self):
            if field in ("name", "ttl", "age", "waiters", "wait"):
                return f"-{field}" if backwards else field
        return "ttl"

    def get_results(self, request: HttpRequest) -> None:
        try:
            super().get_results(request)
        except IncorrectLookupParameters:
            if not self.silent:
                raise
            # The page may be one of those of the store that does not answer: it is empty, and not
            # gone.
            self.page_num = 1
            super().get_results(request)
            self.result_list = []

    def get_queryset(  # type: ignore[override]
        self, request: HttpRequest, exclude_parameters: Any = None
    ) -> Rows:
        apply_filters(self, request)
        specs = [spec for spec in self.filter_specs if isinstance(spec, LockFilter)]
        values = {spec.parameter: spec.value for spec in specs}
        fields: dict[str, Any] = {}
        for spec in specs:
            fields |= spec.asks()
        prefix, words = Criteria.words_of(self.query)
        asked = Asked(
            Criteria(prefix, words, **fields),
            self.query,
            self._order(),
            values.get("state") == ENDLESS,
            self.list_max_show_all if self.show_all else max(1, self.page_num) * self.list_per_page,
        )
        return self.root_queryset.of_store(values.get("store")).narrowed(asked)
