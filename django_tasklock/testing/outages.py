"""A server that does not answer."""

from __future__ import annotations

from collections.abc import Callable

from .._values.owner import owner_record
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import Extension, Note
from ..stores.records import FREE, Change, Held
from .steps import LONG_SECONDS, Contract, a_lease, needs, new_name

__all__ = ["Outages"]


class Outages(Contract):
    """The contract of all verbs while the server does not answer."""

    def test_an_outage_is_store_unavailable(self) -> None:
        """It is never reported as "held", as "not held", or as the client's own error."""
        store, name, token = self.make_silent_store(), new_name(), new_token()
        needs(store is not None, "can be made without its server (make_silent_store)")
        assert store is not None
        owner, note = owner_record(), Note(name, "a", LONG_SECONDS)
        change = Change(name, FREE, a_lease(), LONG_SECONDS)
        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: store.put([change]),
            "get": lambda: store.get([name]),
            "acquire": lambda: store.acquire([name], token, LONG_SECONDS, owner),
            "extend": lambda: store.extend(name, token, LONG_SECONDS),
            "extend_many": lambda: store.extend_many([Extension(name, token, LONG_SECONDS)]),
            "release": lambda: store.release(name, token),
            "rewrite": lambda: store.rewrite(name, Held(token), LONG_SECONDS, owner, "a"),
            "clear": lambda: store.clear(name),
            "find": lambda: store.find(name),
            "get_note": lambda: store.get_note(name),
            "set_note": lambda: store.set_note(note),
            "reserve": lambda: store.reserve(name, "a", LONG_SECONDS),
            "unreserve": lambda: store.unreserve(name, "a"),
        }
        if store.supports_listing:
            verbs |= {"list": lambda: [*store.list()], "count": store.count}
        if store.puts_together:
            verbs["acquire_all"] = lambda: store.acquire_all({name: token}, LONG_SECONDS, owner)
        for verb, call in verbs.items():
            assert _raised_by(call) == store.alias, f"{verb} hides that the server is silent"


def _raised_by(call: Callable[[], object]) -> str | None:
    """The alias that `StoreUnavailable` names; None if the call raised nothing."""
    try:
        call()
    except StoreUnavailable as error:
        return error.store
    return None
