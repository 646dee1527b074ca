"""The filters of the list: by state, store, task and host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from django.contrib.admin import ListFilter
from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy

from .._values.describe import printable
from .._values.lock_info import LockInfo
from .store_reader import aliases

__all__ = ["ENDLESS", "FILTERS", "SOON_SECONDS", "LockFilter"]

SOON_SECONDS = 60.0
"""a lock that expires within them "expires soon" """
ENDLESS = "endless"


class LockFilter(ListFilter):
    """A filter, with one parameter in the list's URL.

    Its choices come from locks that the page has read, which are not all: a value that is not among
    them can be searched for.
    """

    parameter: ClassVar[str]

    def __init__(
        self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        values = params.pop(self.parameter, None)
        self.value = values[-1] if values else None

    @property
    def parameter_name(self) -> str:
        """The parameter, by the name that themes know it by."""
        return self.parameter

    def asks(self) -> dict[str, Any]:
        """Return fields of `Criteria` that a lock must have; none if this filter is not used."""
        return {}

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

    def asks(self) -> dict[str, Any]:
        return {"task": self.value}

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        return {info.owner.task: printable(info.owner.task) for info in infos if info.owner.task}


class HostFilter(LockFilter):
    """By the holder's host."""

    title = gettext_lazy("host")
    parameter = "host"

    def asks(self) -> dict[str, Any]:
        return {"host": self.value}

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        return {info.owner.host: printable(info.owner.host) for info in infos if info.owner.host}


class StateFilter(LockFilter):
    """Locks that end soon, whose owner is gone, that cool, or that never expire."""

    title = gettext_lazy("state")
    parameter = "state"
    sorted = False

    def asks(self) -> dict[str, Any]:
        if self.value == "soon":
            return {"within": SOON_SECONDS}
        return {self.value: True} if self.value in ("cooling", "gone") else {}

    def options(self, infos: Iterable[LockInfo]) -> Mapping[str, str]:
        return {
            "soon": gettext("expires within a minute"),
            "gone": gettext("owner gone"),
            "cooling": gettext("cooling"),
            ENDLESS: gettext("no TTL (walks the whole store)"),
        }


FILTERS = (StateFilter, StoreFilter, TaskFilter, HostFilter)
