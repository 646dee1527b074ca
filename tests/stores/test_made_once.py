"""A store is made once in a process, from the settings that hold then."""

from __future__ import annotations

import threading

import pytest
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock import stores as stores_module
from django_tasklock.conf import StoreSettings, configured_stores
from django_tasklock.stores import stores
from django_tasklock.stores.memory import MemoryStore
from tests.steps import Meanwhile, in_child
from tests.waiting import PATIENCE, until


class SlowStore(MemoryStore):
    """A store that two threads are always about to make at the same time."""

    both = threading.Barrier(2, timeout=PATIENCE)

    def __init__(self, settings: StoreSettings) -> None:
        self.both.wait()
        super().__init__(settings)


SLOW = {"default": {"BACKEND": f"{__name__}.SlowStore"}}


def test_threads_that_make_a_store_at_the_same_time_get_the_same_one() -> None:
    with override_settings(TASKLOCK=SLOW):
        makers = [Meanwhile(lambda: stores["default"]) for _ in range(2)]
        assert {maker.result() for maker in makers} == {stores["default"]}


def test_what_is_being_made_of_older_settings_is_not_kept() -> None:
    with override_settings(TASKLOCK=SLOW):
        maker = Meanwhile(lambda: stores["default"])
        until(lambda: SlowStore.both.n_waiting == 1)
    SlowStore.both.wait()
    assert isinstance(maker.result(), SlowStore)
    assert not isinstance(stores["default"], SlowStore)


@pytest.mark.usefixtures("on_redis", "each_fork")
def test_a_child_that_is_forked_while_a_thread_reads_the_settings_reads_them_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, go_on = threading.Event(), threading.Event()

    def slowly() -> dict[str, StoreSettings]:
        if not reads.is_set():
            reads.set()
            go_on.wait(PATIENCE)
        return configured_stores()

    monkeypatch.setattr(stores_module, "configured_stores", slowly)
    stores.forget()
    reader = Meanwhile(lambda: locks.is_locked("video:1"))
    assert reads.wait(PATIENCE)
    assert in_child(lambda: locks.is_locked("video:1")) is False
    go_on.set()
    assert reader.result() is False
