"""``lock()``: a lease for the length of a block, or of a call."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from django_tasklock import LeaseLost, LockNotAcquired, lock, locks
from tests.conftest import UseCaches, UseRedis
from tests.steps import LONG, RENEWED, holder, renewed, taken
from tests.store_cases import own_prefix
from tests.waiting import until


@pytest.fixture(params=["redis", "locmem"], autouse=True)
def _store(request: pytest.FixtureRequest, use_redis: UseRedis, use_caches: UseCaches) -> None:
    if request.param == "redis":
        use_redis()
    else:
        backend = "django.core.cache.backends.locmem.LocMemCache"
        use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}})


class TestBlock:
    def test_the_lock_is_held_in_the_block_and_not_after_it(self) -> None:
        with lock("video:1", ttl=LONG) as lease:
            assert (lease.name, lease.held, lease.store) == ("video:1", True, "default")
            assert 0 < lease.remaining <= LONG
            assert lease.ttl == LONG
            assert holder("video:1").token == lease.token
            lease.assert_held()
            with lock("video:2") as other:
                assert other.token != lease.token
        assert not locks.is_locked("video:1")
        assert not locks.is_locked("video:2")
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

    @pytest.mark.parametrize("error", [KeyError("boom"), SystemExit(3)], ids=repr)
    def test_error_in_the_block_releases_and_goes_on_its_way(self, error: BaseException) -> None:
        with pytest.raises(type(error)) as raised, lock("video:1"):
            raise error
        assert raised.value is error
        assert not locks.is_locked("video:1")

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
            assert locks.clear("video:1")
            raise KeyError("boom")

        with pytest.raises(KeyError), lock("video:1", ttl=LONG):
            boom()

    def test_lease_of_a_block_is_renewed(self) -> None:
        with lock("video:1", ttl=RENEWED) as lease:
            first = holder("video:1").token
            renewed(lease, 4)
            assert holder("video:1").token == first

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

    def test_skip_returns_none_and_swallows_no_refusal_from_within(self) -> None:
        taken("report:mon"), taken("other")

        @lock("report:{date}", on_conflict="skip")
        def build(date: str) -> str:
            with lock("other" if date == "wed" else "none"):
                return date

        assert build("mon") is None
        assert build("tue") == "tue"
        with pytest.raises(LockNotAcquired):
            build("wed")
        assert not locks.is_locked("report:wed")

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
