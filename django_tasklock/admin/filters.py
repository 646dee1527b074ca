"""The filters of the list: by state, store, task and host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from django.contrib.admin import ListFilter
from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy

from .._values.describe import printable
from .._values.lock_info import LockInfo
from .rows import Test
from .store_reader import aliases

__all__ = ["ENDLESS", "FILTERS", "SOON_SECONDS", "LockFilter"]

SOON_SECONDS = 60.0
"""a lock that expires within them "expires soon" """
ENDLESS = "endless"


class LockFilter(ListFilter):
    """A filter, with one parameter in the list's URL.

    Its choices come from the locks that the page has read anyway: they cost no query.
    """

    parameter: ClassVar[str]

    def __init__(
        self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        values = params.pop(self.parameter, None)
        self.value = values[-1] if values else None

    def test(self) -> Test | None:
        """Return the test that a lock must pass; None if this filter is not used."""
        return None

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        """Return the values to choose from, and the text of each."""
        raise NotImplementedError

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [self.parameter]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices for the template, after the page's locks were read."""
        yield {
            "selected": self.value is None,
            "query_string": changelist.get_query_string(remove=[self.parameter]),
            "display": gettext("All"),
        }
        options = dict(self.options(changelist.seen))
        if self.value is not None:
            options.setdefault(self.value, printable(self.value))
        for value, display in sorted(options.items()) if self.sorted else options.items():
            yield {
                "selected": self.value == value,
                "query_string": changelist.get_query_string({self.parameter: value}),
                "display": display,
            }

    sorted = True


class StoreFilter(LockFilter):
    """By the store's alias; hidden where there is one store."""

    title = gettext_lazy("store")
    parameter = "store"
    sorted = False

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        return {alias: printable(alias) for alias in aliases()[0]}

    def has_output(self) -> bool:
        return self.value is not None or len(aliases()[0]) > 1


class TaskFilter(LockFilter):
    """By the name of the holder's task."""

    title = gettext_lazy("task")
    parameter = "task"

    def test(self) -> Test | None:
        return None if self.value is None else lambda info: info.owner.task == self.value

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        return {info.owner.task: printable(info.owner.task) for info in infos if info.owner.task}


class HostFilter(LockFilter):
    """By the holder's host."""

    title = gettext_lazy("host")
    parameter = "host"

    def test(self) -> Test | None:
        return None if self.value is None else lambda info: info.owner.host == self.value

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        return {info.owner.host: printable(info.owner.host) for info in infos if info.owner.host}


class StateFilter(LockFilter):
    """Locks that end soon, whose owner is gone, that cool, or that never expire."""

    title = gettext_lazy("state")
    parameter = "state"
    sorted = False

    def test(self) -> Test | None:
        if self.value == "soon":
            return lambda info: info.ttl is not None and info.ttl <= SOON_SECONDS
        if self.value == "cooling":
            return lambda info: info.cooling
        if self.value == "gone":
            return lambda info: info.owner.alive() is False
        return None

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        return {
            "soon": gettext("expires within a minute"),
            "gone": gettext("owner gone"),
            "cooling": gettext("cooling"),
            ENDLESS: gettext("no TTL (walks the whole store)"),
        }


FILTERS = (StateFilter, StoreFilter, TaskFilter, HostFilter)
