"""A store of five methods keeps the whole contract: the other methods have defaults."""

from __future__ import annotations

import pickle

import pytest

from django_tasklock._values.tokens import new_token
from django_tasklock.conf import StoreSettings
from django_tasklock.exceptions import ListingNotSupported, StoreUnavailable
from django_tasklock.stores.base import BaseStore, Grant, Note, Refusal
from django_tasklock.stores.lease_notes import NAME_PREFIX
from django_tasklock.stores.required import RequiredMethods
from django_tasklock.testing import StoreContract
from tests.five_methods import FiveMethodStore
from tests.steps import LONG
from tests.stores.contract import OptionalContract


def five_methods() -> FiveMethodStore:
    return FiveMethodStore(StoreSettings(alias="default"))


class TestDefaults(OptionalContract):
    def make_store(self) -> BaseStore:
        return five_methods()


@pytest.mark.nightly
class TestFiveMethods(StoreContract):
    def make_store(self) -> BaseStore:
        return five_methods()


def test_the_store_implements_what_is_required_and_nothing_else() -> None:
    required = {name for name in vars(RequiredMethods) if not name.startswith("_")}
    assert required == {"acquire", "extend", "release", "clear", "get"}
    methods = {name for name, value in vars(FiveMethodStore).items() if callable(value)}
    assert methods - {"__init__", "_holds"} == required


def test_missing_method_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"BaseStore does not implement get\(\)"):
        BaseStore(StoreSettings(alias="default")).get("video:1")


def test_what_the_store_cannot_do_is_said() -> None:
    store = five_methods()
    for call, what in (
        (store.list, "list its locks"),
        (store.count, "list its locks"),
        (store.scan, "search for keys that other code set"),
        (store.reservations, "list its reservations"),
    ):
        with pytest.raises(ListingNotSupported, match=f"'default' cannot {what}$") as raised:
            call()
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_notes_are_leases_of_legal_names_that_begin_with_the_prefix() -> None:
    store = five_methods()
    store.set_note(Note("queued a task " + "k" * 300, "text", LONG))
    assert store.reserve("queued another", "id", LONG) is None
    assert len(store._leases) == 2
    for name in store._leases:
        assert name.startswith(NAME_PREFIX)
        assert len(name) <= 200
        assert name.isprintable()
        assert " " not in name


def test_a_text_that_does_not_fit_is_a_value_error() -> None:
    store = five_methods()
    with pytest.raises(ValueError, match="1530 characters at most, not of 1531"):
        store.set_note(Note("key", "a" * 1531, LONG))
    store.set_note(Note("key", "a" * 1530, LONG))
    assert store.get_note("key") == "a" * 1530


def test_a_lease_that_is_no_note_is_written_over() -> None:
    """Somebody has taken the name of a note as a lock."""
    store = five_methods()
    assert store.reserve("key", "id-1", LONG) is None
    (name,) = store._leases
    for token in (new_token(), "\\" * 22):
        store.clear(name)
        assert isinstance(store.acquire(name, token, LONG, {"task_id": "\\x"}), Grant)
        assert store.get_note("key") is None
        assert store.reserve("key", "id-2", LONG) is None
        assert store.get_note("key") == "id-2"


def test_a_store_that_never_grants_is_unavailable() -> None:
    class Full(FiveMethodStore):
        def clear(self, name: str, token: str | None = None) -> bool:
            return False

    store = Full(StoreSettings(alias="default"))
    store.set_note(Note("key", "first", LONG))
    with pytest.raises(StoreUnavailable, match="could not be written over"):
        store.set_note(Note("key", "second", LONG))
    with pytest.raises(StoreUnavailable, match="could not be written over"):
        store.reserve("key", "second", LONG, over="first")
    assert store.reserve("key", "second", LONG) == "first"


def test_a_note_is_written_before_the_release_which_may_let_a_redelivery_in() -> None:
    class Watched(FiveMethodStore):
        seen: str | None = None

        def release(self, name: str, token: str, proof: object = None) -> bool:
            self.seen = self.get_note("run 1")
            return super().release(name, token, proof)

    store, token = Watched(StoreSettings(alias="default")), new_token()
    assert not isinstance(store.acquire("job:1", token, LONG, {}), Refusal)
    assert store.release_with_note("job:1", token, None, Note("run 1", "ended", LONG))
    assert store.seen == "ended"
