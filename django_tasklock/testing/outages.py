"""A server that does not answer."""

from __future__ import annotations

from collections.abc import Callable

from .._values.owner_record import owner_record
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import Extension, Note
from .steps import LONG_SECONDS, Contract, needs, new_name

__all__ = ["Outages"]


class Outages(Contract):
    """The contract of every method while the server does not answer."""

    def test_an_outage_is_store_unavailable(self) -> None:
        """It is never reported as "held", as "not held", or as the client's own error."""
        store = self.make_silent_store()
        needs(store is not None, "can be made without its server (make_silent_store)")
        assert store is not None
        name, token = new_name(), new_token()
        calls: dict[str, Callable[[], object]] = {
            "acquire": lambda: store.acquire(name, token, LONG_SECONDS, owner_record()),
            "extend": lambda: store.extend(name, token, LONG_SECONDS),
            "extend_many": lambda: store.extend_many([Extension(name, token, LONG_SECONDS)]),
            "release": lambda: store.release(name, token),
            "clear": lambda: store.clear(name),
            "clear with a token": lambda: store.clear(name, token),
            "get": lambda: store.get(name),
            "get_many": lambda: store.get_many([name]),
            "held": lambda: store.held([name]),
            "get_note": lambda: store.get_note(name),
            "set_note": lambda: store.set_note(Note(name, "a", LONG_SECONDS)),
            "reserve": lambda: store.reserve(name, "a", LONG_SECONDS),
            "unreserve": lambda: store.unreserve(name, "a"),
        }
        if store.supports_listing:
            calls["list"] = store.list
            calls["count"] = store.count
        for verb, call in calls.items():
            assert self._raised_by(call) == store.alias, f"{verb} hides that the server is silent"

    def _raised_by(self, call: Callable[[], object]) -> str | None:
        """The alias that `StoreUnavailable` names; None if the call raised nothing."""
        try:
            call()
        except StoreUnavailable as error:
            return error.store
        return None
