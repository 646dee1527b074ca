"""A server that does not answer to the optional verbs."""

from __future__ import annotations

from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import Extension, Note
from django_tasklock.testing.outages import assert_each_is_unavailable, silent
from django_tasklock.testing.steps import LONG_SECONDS, Contract, new_name

__all__ = ["OptionalOutages"]


class OptionalOutages(Contract):
    """The contract of the optional methods while the server does not answer."""

    def test_an_outage_of_the_optional_verbs_is_store_unavailable(self) -> None:
        store, name, token = silent(self.make_silent_store()), new_name(), new_token()
        assert_each_is_unavailable(
            store,
            {
                "extend_many": lambda: store.extend_many([Extension(name, token, LONG_SECONDS)]),
                "get_many": lambda: store.get_many([name]),
                "held": lambda: store.held([name]),
                "get_note": lambda: store.get_note(name),
                "set_note": lambda: store.set_note(Note(name, "a", LONG_SECONDS)),
                "reserve": lambda: store.reserve(name, "a", LONG_SECONDS),
                "unreserve": lambda: store.unreserve(name, "a"),
            },
        )
