"""``exclusive=True``: a writer beside readers that hold a permit each."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_tasklock import Lease, LockNotAcquired, lock, locks
from django_tasklock.stores.base import BaseStore
from django_tasklock.views import lock_view
from tests.agent import Agent
from tests.steps import LONG, SOON_SECONDS, Meanwhile, holder, killed_in_child, taken
from tests.waiting import PATIENCE, until

READERS = 3


def read(**options: Any) -> Lease:
    return taken("prices", slots=READERS, **options)


def write(**options: Any) -> Any:
    """A block of a writer."""
    return lock("prices", ttl=LONG, slots=READERS, exclusive=True, **options)


def writer(work: Callable[[], object]) -> Meanwhile[object]:
    """A writer in a thread of its own, which has come and waits for the readers that are there."""

    def write_when_alone() -> object:
        with write(wait=None):
            return work()

    thread = Meanwhile(write_when_alone)
    until(lambda: locks.is_locked("prices"), "the writer")
    return thread


class TestOnEveryStore:
    def test_a_writer_waits_for_the_readers_and_newcomers_for_the_writer(
        self, each_store: BaseStore
    ) -> None:
        # Given two readers of three, and a writer that has come
        first, second = read(), read()
        waits = writer(lambda: [locks.is_locked(f"prices#{slot}") for slot in (1, 2, 3)])
        # I expect it to wait for both, and a newcomer to be told of it
        with pytest.raises(LockNotAcquired) as refused:
            lock("prices", slots=READERS).__enter__()
        assert getattr(refused.value.holder, "name", "") == "prices"
        assert first.release()
        assert locks.acquire("prices", slots=READERS) is None
        assert (second.extend(), waits.is_alive()) == (True, True)
        # And to have all permits in the end, and to give back all of them
        assert second.release()
        assert waits.result() == [True, True, True]
        assert [read().slot for _ in range(READERS)] == [1, 2, 3]

    def test_a_writer_that_does_not_wait_leaves_the_readers_alone(
        self, each_store: BaseStore
    ) -> None:
        reader = read()
        with pytest.raises(LockNotAcquired) as refused:
            write().__enter__()
        assert getattr(refused.value.holder, "name", "") == reader.name
        assert (reader.held, read().slot) == (True, 2)

    def test_a_writer_whose_wait_runs_out_lets_newcomers_in_again(
        self, each_store: BaseStore
    ) -> None:
        reader = read()
        with pytest.raises(LockNotAcquired):
            write(wait=0.3).__enter__()
        assert not locks.is_locked("prices")
        assert (reader.held, read().slot) == (True, 2)


class TestTheWriter:
    def test_a_reader_that_would_become_the_writer_is_refused_at_once(
        self, store: BaseStore
    ) -> None:
        # Given a block that reads, and another writer that waits for its end
        with lock("prices", slots=READERS):
            waits = writer(lambda: None)
            # When the block would write, each of the two would wait for the other
            with pytest.raises(LockNotAcquired, match="by this very thread"):
                write(wait=PATIENCE).__enter__()
        # I expect it to be told so, and the other writer to have its turn
        waits.result()

    def test_a_reader_that_is_killed_is_waited_for_no_longer(self, on_redis: object) -> None:
        with Agent() as agent:
            assert agent.ask("acquire", name="prices", slots=READERS, ttl=LONG)
            waits = writer(lambda: "written")
            agent.kill()
            assert waits.result(SOON_SECONDS) == "written"

    def test_inside_its_block_it_writes_again_and_does_not_read(self, store: BaseStore) -> None:
        with write(), pytest.raises(LockNotAcquired, match="by this very thread"):
            lock("prices", slots=READERS, wait=PATIENCE).__enter__()
        with write(reentrant=True) as outer:
            with write(reentrant=True) as inner:
                assert (inner is outer, outer.name, outer.slot) == (True, "prices", None)
            with pytest.raises(LockNotAcquired, match="by this very thread"):
                lock("prices", slots=READERS, wait=PATIENCE).__enter__()
            outer.assert_held()
        assert locks.get("prices") is locks.get("prices#1") is None

    def test_after_its_death_a_reader_has_its_turn_at_once(self, on_redis: object) -> None:
        def die() -> None:
            write().__enter__()
            os.kill(os.getpid(), signal.SIGKILL)

        killed_in_child(die)
        assert holder("prices").ttl == pytest.approx(LONG, abs=PATIENCE)
        assert read(wait=SOON_SECONDS).slot == 1

    def test_it_is_a_block_a_decorator_or_awaited(self, on_redis: object) -> None:
        @lock("prices:{shop}", slots=READERS, exclusive=True)
        def written(shop: int) -> list[str]:
            return sorted(info.name for info in locks.list(f"prices:{shop}"))

        async def awaited() -> Lease:
            async with write() as lease:
                assert isinstance(lease, Lease)
            return lease

        assert written(7) == ["prices:7", "prices:7#1", "prices:7#2", "prices:7#3"]
        assert asyncio.run(awaited()).ended_well
        assert locks.count("prices") == 0

    @pytest.mark.usefixtures("on_locmem")
    def test_what_it_is_not(self) -> None:
        wrong: Any = ({}, {"slots": 1})
        for options in wrong:
            with pytest.raises(ValueError, match="exclusive=True needs the slots"):
                lock("prices", exclusive=True, **options)
            with pytest.raises(ValueError, match="exclusive=True needs the slots"):
                lock_view("prices", exclusive=True, **options)
        with pytest.raises(TypeError, match="exclusive"):
            lock("prices", slots=2, exclusive=1)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="slots must be 1 with several"):
            lock(["prices", "stock"], slots=2, exclusive=True)
        with pytest.raises(TypeError, match="exclusive"):
            locks.acquire("prices", slots=2, exclusive=True)  # type: ignore[call-arg]
