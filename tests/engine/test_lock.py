"""``lock()``: a lease for the length of a block, or of a call."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import LeaseLost, LockNotAcquired, lock, locks
from tests.conftest import UseCaches, UseRedis
from tests.steps import LONG, RENEWED, all_of, holder, taken
from tests.store_cases import own_prefix
from tests.waiting import until


@pytest.fixture(params=["redis", "locmem"], autouse=True)
def _store(request: pytest.FixtureRequest, use_redis: UseRedis, use_caches: UseCaches) -> None:
    if request.param == "redis":
        use_redis()
    else:
        backend = "django.core.cache.backends.locmem.LocMemCache"
        use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}})


def let_go(name: str) -> None:
    """An operator takes the lock from whoever holds it."""
    assert locks.clear(name)


class TestBlock:
    def test_the_lock_is_held_in_the_block_and_not_after_it(self) -> None:
        with lock("video:1", ttl=LONG) as lease:
            assert (lease.name, lease.held, lease.store) == ("video:1", True, "default")
            assert 0 < lease.remaining <= LONG
            assert lease.ttl == LONG
            assert holder("video:1").token == lease.token
            lease.assert_held()
        assert not locks.is_locked("video:1")
        assert (lease.held, lease.remaining) == (False, 0.0)

    def test_taken_lock_raises_with_its_name_and_holder(self) -> None:
        other = taken("video:1")
        with pytest.raises(LockNotAcquired) as refused, lock("video:1"):
            pytest.fail("the block ran")  # pragma: no cover
        assert refused.value.name == "video:1"
        assert refused.value.holder is not None
        assert refused.value.holder.token == other.token
        assert str(other.owner) in str(refused.value)
        assert other.held

    def test_key_of_somebody_else_raises_as_well(self) -> None:
        cache.add("lock:video:1", "locked", 7200)
        with pytest.raises(LockNotAcquired) as refused, lock("video:1"):
            pytest.fail("the block ran")  # pragma: no cover
        assert str(refused.value) == "the lock 'video:1' is held"

    def test_error_in_the_block_releases_and_goes_on_its_way(self) -> None:
        boom = KeyError("boom")
        with pytest.raises(KeyError) as raised, lock("video:1"):
            raise boom
        assert raised.value is boom
        assert not locks.is_locked("video:1")

    def test_system_exit_in_the_block_releases_too(self) -> None:
        with pytest.raises(SystemExit), lock("video:1"):
            raise SystemExit(3)
        assert not locks.is_locked("video:1")

    def test_lost_lease_is_said_at_the_end_of_the_block(self) -> None:
        with pytest.raises(LeaseLost) as lost, lock("video:1", ttl=LONG):
            let_go("video:1")
        assert lost.value.name == "video:1"

    def test_lapsed_lease_is_said_at_the_end_of_the_block(self) -> None:
        def outlive() -> None:
            with lock("video:1", ttl=0.05, renew=False) as lease:
                until(lambda: not lease.held)
                with pytest.raises(LeaseLost):
                    lease.assert_held()

        with pytest.raises(LeaseLost, match="ran out"):
            outlive()

    def test_what_the_block_raised_comes_before_a_lost_lease(self) -> None:
        def boom() -> None:
            let_go("video:1")
            raise KeyError("boom")

        with pytest.raises(KeyError), lock("video:1", ttl=LONG):
            boom()

    def test_successor_of_a_lost_lease_is_left_alone(self) -> None:
        successors = []

        def change_hands() -> None:
            let_go("video:1")
            successors.append(taken("video:1"))

        with pytest.raises(LeaseLost), lock("video:1", ttl=LONG):
            change_hands()
        assert holder("video:1").token == successors[0].token

    def test_lease_released_in_the_block_is_no_loss(self) -> None:
        with lock("video:1") as lease:
            assert lease.release()

    def test_lease_of_a_block_is_renewed(self) -> None:
        with lock("video:1", ttl=RENEWED) as lease:
            first = holder("video:1").token
            end = lease._deadline
            until(lambda: lease._deadline > end + RENEWED, "three renewals")
            assert holder("video:1").token == first

    def test_lock_inside_itself_is_refused_and_stays_held(self) -> None:
        with lock("video:1") as outer:
            with pytest.raises(LockNotAcquired), lock("video:1"):
                pytest.fail("the block ran")  # pragma: no cover
            assert outer.held
            assert holder("video:1").token == outer.token

    def test_different_locks_nest(self) -> None:
        with lock("video:1") as outer, lock("video:2") as inner:
            assert outer.token != inner.token
            assert outer.held
            assert inner.held
        assert not locks.is_locked("video:1")
        assert not locks.is_locked("video:2")

    def test_one_lock_object_gives_a_fresh_lease_each_time(self) -> None:
        again = lock("video:1")
        tokens = set()
        for _ in range(3):
            with again as lease:
                tokens.add(lease.token)
        assert len(tokens) == 3

    def test_one_lock_object_serves_many_threads(self) -> None:
        """Each thread leaves with the lease it came with, also where another one is waiting."""
        shared, inside, tokens = lock("video:1", ttl=LONG, wait=LONG), threading.Lock(), []

        def enter() -> None:
            for _ in range(5):
                with shared as lease:
                    assert inside.acquire(blocking=False), "two at once"
                    tokens.append(lease.token)
                    assert holder("video:1").token == lease.token
                    inside.release()

        all_of(*[enter] * 6)
        assert len(set(tokens)) == 30
        assert not locks.is_locked("video:1")

    def test_skip_is_not_for_blocks(self) -> None:
        block: Any = lock("video:1", on_conflict="skip")
        with pytest.raises(TypeError, match="decorator"), block:
            pytest.fail("the block ran")  # pragma: no cover
        assert not locks.is_locked("video:1")


class TestDecorator:
    def test_each_call_has_a_lease_of_its_own_name(self) -> None:
        held = []

        @lock("report:{date}", ttl=LONG)
        def build(date: str, *, copies: int = 1) -> str:
            held.append(holder(f"report:{date}").token)
            return f"{copies} of {date}"

        assert build("mon") == "1 of mon"
        assert build(date="tue", copies=2) == "2 of tue"
        assert build("mon") == "1 of mon"
        assert len(set(held)) == 3
        assert not locks.is_locked("report:mon")
        assert (build.__name__, build.__module__) == ("build", __name__)

    def test_arguments_name_the_same_lock_however_they_are_passed(self) -> None:
        taken("report:mon:1")

        @lock("report:{date}:{copies}")
        def build(date: str, copies: int = 1) -> None:
            pytest.fail("it ran")  # pragma: no cover

        for args, kwargs in ((("mon",), {}), (("mon", 1), {}), ((), {"copies": 1, "date": "mon"})):
            with pytest.raises(LockNotAcquired):
                build(*args, **kwargs)  # type: ignore[arg-type]

    def test_skip_returns_none_and_the_body_does_not_run(self) -> None:
        other = taken("report:mon")
        runs = []

        @lock("report:{date}", on_conflict="skip")
        def build(date: str) -> str:
            runs.append(date)
            return "done"

        assert build("mon") is None
        assert build("tue") == "done"
        assert runs == ["tue"]
        assert other.release()
        assert build("mon") == "done"

    def test_skip_does_not_swallow_a_refusal_from_within(self) -> None:
        taken("other")

        @lock("report", on_conflict="skip")
        def build() -> None:
            with lock("other"):
                pytest.fail("the block ran")  # pragma: no cover

        with pytest.raises(LockNotAcquired):
            build()
        assert not locks.is_locked("report")

    def test_methods_are_named_by_their_object(self) -> None:
        class Video:
            def __init__(self, pk: int) -> None:
                self.pk = pk

            @lock("video:{self.pk}:{how}")
            def transcode(self, how: str = "hls") -> bool:
                return locks.is_locked(f"video:{self.pk}:{how}")

        assert Video(7).transcode() is True
        taken("video:8:hls")
        with pytest.raises(LockNotAcquired):
            Video(8).transcode("hls")

    def test_lease_lost_in_a_call_is_said_at_its_end(self) -> None:
        @lock("report")
        def build() -> str:
            let_go("report")
            return "not so"

        with pytest.raises(LeaseLost):
            build()

    def test_error_of_the_body_comes_before_a_lost_lease(self) -> None:
        @lock("report")
        def build() -> None:
            let_go("report")
            raise KeyError("boom")

        with pytest.raises(KeyError):
            build()

    def test_calls_that_wait_run_one_after_another(self) -> None:
        inside, runs = threading.Lock(), []

        @lock("report", ttl=LONG, wait=LONG)
        def build() -> None:
            assert inside.acquire(blocking=False), "two at once"
            runs.append(threading.get_ident())
            inside.release()

        all_of(*[build] * 8)
        assert len(runs) == 8

    def test_function_that_returns_before_its_body_runs_is_refused(self) -> None:
        async def many() -> AsyncIterator[int]:
            yield 1

        def one_by_one() -> Iterator[int]:
            yield 1

        class OneByOne:
            def __call__(self) -> Iterator[int]:
                yield 1

        for function in (many, one_by_one, functools.partial(one_by_one), OneByOne()):
            with pytest.raises(TypeError, match=r"Use `with lock"):
                lock("report")(function)
        with pytest.raises(TypeError, match=r"OneByOne: .* Decorate the method that does the work"):
            lock("report")(OneByOne)

    def test_wrong_argument_of_a_call_is_the_calls_own_error(self) -> None:
        @lock("report:{date}")
        def build(date: str) -> None: ...

        wrong: Any = build
        with pytest.raises(TypeError):
            wrong()
        with pytest.raises(TypeError):
            wrong("mon", colour="red")

    @pytest.mark.parametrize("value", ["", " " * 70, "x" * 300])
    def test_argument_that_makes_no_name_is_a_value_error(self, value: str) -> None:
        """Quoted it may be too long; alone it may be empty."""

        @lock("{date}")
        def build(date: str) -> None:
            pytest.fail("it ran")  # pragma: no cover

        with pytest.raises(ValueError, match="name"):
            build(value)
