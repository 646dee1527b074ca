"""``lock()``: a lease for the length of a block, or of a call."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from django_tasklock import LeaseLost, LockNotAcquired, lock, locks
from tests.inside import kept
from tests.steps import LONG, all_of, holder, taken
from tests.waiting import until


@pytest.fixture(params=["on_redis", "on_locmem"], autouse=True)
def _store(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


class TestBlock:
    def test_the_lock_is_held_in_the_block_and_not_after_it(self) -> None:
        # Given a block
        with lock("video:1", ttl=LONG) as lease:
            # I expect it to have a lease on its lock
            assert (lease.name, lease.held, lease.store) == ("video:1", True, "default")
            assert 0 < lease.remaining <= lease.ttl == LONG
            assert holder("video:1").token == lease.token
            lease.assert_held()
        # And its end to be the end of the lease
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

    @pytest.mark.parametrize("error", [KeyError("boom"), SystemExit(3)], ids=repr)
    def test_error_in_the_block_releases_and_goes_on_its_way(self, error: BaseException) -> None:
        with pytest.raises(type(error)) as raised, lock("video:1"):
            raise error
        assert raised.value is error
        assert not locks.is_locked("video:1")

    def test_lapsed_lease_is_said_at_the_end_of_the_block_unless_that_raised(self) -> None:
        def outlive(boom: dict[str, str]) -> None:
            with lock(f"video:{len(boom)}", ttl=0.05, renew=False) as lease:
                until(lambda: not lease.held)
                assert boom["boom"]

        for boom, error in (({"boom": "none"}, LeaseLost), ({}, KeyError)):
            with pytest.raises(error, match=r"ran out|boom"):
                outlive(boom)

    def test_skip_is_not_for_blocks(self) -> None:
        block: Any = lock("video:1", on_conflict="skip")
        with pytest.raises(TypeError, match="decorator"), block:
            pytest.fail("the block ran")  # pragma: no cover
        assert not locks.is_locked("video:1")


class TestDecorator:
    def test_each_call_has_a_lease_of_its_own_name(self) -> None:
        held = []

        class Report(str):
            @lock("report:{self}:{how}", ttl=LONG)
            def build(self, how: str, *, copies: int = 1) -> str:
                held.append(holder(f"report:{self}:{how}").token)
                return f"{copies} of {self}"

        assert Report("mon").build("pdf") == "1 of mon"
        assert Report("tue").build(how="pdf", copies=2) == "2 of tue"
        assert Report("mon").build("pdf") == "1 of mon"
        assert len(set(held)) == 3
        assert not locks.is_locked("report:mon:pdf")
        assert (Report.build.__name__, Report.build.__module__) == ("build", __name__)

    def test_a_function_may_be_written_in_c_and_have_no_signature(self) -> None:
        assert lock("video:1")(max)(1, 2) == 2
        assert lock("video:1")(print)() is None  # It has one since Python 3.11.

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

    def test_function_that_returns_before_its_body_runs_is_refused(self) -> None:
        async def many() -> AsyncIterator[int]:
            yield 1

        def one_by_one(_: object = None) -> Iterator[int]:
            yield 1

        class OneByOne:
            __call__ = one_by_one

        for function in (many, one_by_one, functools.partial(one_by_one), OneByOne()):
            with pytest.raises(TypeError, match=r"Use `with lock"):
                lock("report")(function)
        with pytest.raises(TypeError, match=r"OneByOne: .* Decorate the method that does the work"):
            lock("report")(OneByOne)


def test_one_object_serves_many_blocks_and_many_threads() -> None:
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
    until(lambda: kept() == 0, "nothing of its uses is kept")
