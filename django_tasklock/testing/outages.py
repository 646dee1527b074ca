"""A server that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .._values.owner import owner_record
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore
from .steps import LONG_SECONDS, Contract, needs, new_name

__all__ = ["Outages", "assert_each_is_unavailable", "silent"]


class Outages(Contract):
    """The contract of the required methods, and of a list, while the server does not answer."""

    def test_an_outage_is_store_unavailable(self) -> None:
        """It is never reported as "held", as "not held", or as the client's own error."""
        store, name, token = silent(self.make_silent_store()), new_name(), new_token()
        calls: dict[str, Callable[[], object]] = {
            "acquire": lambda: store.acquire(name, token, LONG_SECONDS, owner_record()),
            "extend": lambda: store.extend(name, token, LONG_SECONDS),
            "release": lambda: store.release(name, token),
            "clear": lambda: store.clear(name),
            "clear with a token": lambda: store.clear(name, token),
            "get": lambda: store.get(name),
        }
        if store.supports_listing:
            calls |= {"list": store.list, "count": store.count}
        assert_each_is_unavailable(store, calls)


def silent(store: BaseStore | None) -> BaseStore:
    """The same store; the test is skipped if there is none."""
    needs(store is not None, "can be made without its server (make_silent_store)")
    assert store is not None
    return store


def assert_each_is_unavailable(store: BaseStore, calls: Mapping[str, Callable[[], object]]) -> None:
    for verb, call in calls.items():
        assert _raised_by(call) == store.alias, f"{verb} hides that the server is silent"


def _raised_by(call: Callable[[], object]) -> str | None:
    """The alias that `StoreUnavailable` names; None if the call raised nothing."""
    try:
        call()
    except StoreUnavailable as error:
        return error.store
    return None
