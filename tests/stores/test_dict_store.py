"""A store of three methods keeps the whole contract: all verbs are made of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest

from django_tasklock.conf import StoreSettings
from django_tasklock.exceptions import StoreUnavailable
from django_tasklock.stores.base import BaseStore, Grant, Note
from django_tasklock.stores.records import ANY, Change, Done, Held, new_record
from tests.dict_store import DictStore
from tests.inside import new_token
from tests.pages import DOCS, blocks
from tests.steps import LONG
from tests.stores.contract import WholeContract

SETTINGS = StoreSettings(alias="default")


def test_the_docs_show_this_store() -> None:
    # Given the page for authors of stores, I expect its code to be this store
    shown = blocks(DOCS / "howto/store-of-your-own.md", "python")[0].text
    text = Path(inspect.getfile(DictStore)).read_text()
    code = text.partition("import threading")[2].strip()
    assert shown.partition("import threading")[2].strip() == code


class TestDictStore(WholeContract):
    def make_store(self) -> BaseStore:
        return DictStore(SETTINGS)


class InSteps(DictStore):
    """It cannot list, and makes its changes one after the other."""

    puts_together = False
    supports_listing = False
    list = BaseStore.list


class TestInSteps(WholeContract):
    def make_store(self) -> BaseStore:
        return InSteps(SETTINGS)


def test_a_missing_method_is_named() -> None:
    with pytest.raises(TypeError, match=r"get.*put"):
        BaseStore(SETTINGS)  # type: ignore[abstract]


def test_what_changes_hands_all_the_time_is_unavailable() -> None:
    """A clear, or a reservation over another one, is not tried for ever."""

    class Fast(DictStore):
        def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
            if any(isinstance(change.expect, Held) for change in changes):
                if changes[0].name == "video:1":
                    super().put([Change("video:1", ANY, new_record(new_token(), {}), LONG)])
                return Done(False, self.get([change.name for change in changes]))
            return super().put(changes, least_fence)

    store = Fast(SETTINGS)
    assert isinstance(store.acquire(["video:1"], new_token(), LONG, {}), Grant)
    with pytest.raises(StoreUnavailable, match="video:1 changes hands too fast"):
        store.clear("video:1")
    assert store.reserve("key", "first", LONG) is None
    with pytest.raises(StoreUnavailable, match="could not be written over"):
        store.reserve("key", "second", LONG, over="first")
    assert store.reserve("key", "second", LONG) == "first"


def test_a_note_is_written_before_the_release_which_may_let_a_redelivery_in() -> None:
    class Watched(InSteps):
        seen: str | None = None

        def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
            if changes[0].name == "video:1" and changes[0].record is None:
                self.seen = self.get_note("run 1")
            return super().put(changes, least_fence)

    store, token = Watched(SETTINGS), new_token()
    assert isinstance(store.acquire(["video:1"], token, LONG, {}), Grant)
    assert store.release("video:1", token, Note("run 1", "ended", LONG))
    assert store.seen == "ended"
