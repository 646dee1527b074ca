"""Clearing the lease that was seen, also when it goes between the question and the clear."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_tasklock import Lease, LockInfo, LockService, locks
from django_tasklock.clearing import Outcome, clear_seen
from tests.conftest import UseRedis


class Interrupted(LockService):
    """A service between whose first answer and the next question something happens."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = meanwhile

    def get(self, name: str) -> LockInfo | None:
        info = super().get(name)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        return info


@pytest.fixture
def lease(use_redis: UseRedis) -> Lease:
    use_redis()
    lease = locks.acquire("video:1", ttl=600)
    assert lease
    return lease


def test_lease_that_changes_hands_in_that_moment_is_left_alone(lease: Lease) -> None:
    successors: list[Lease | None] = []

    def change_hands() -> None:
        lease.release()
        successors.append(locks.acquire("video:1", ttl=600))

    outcome, holder = clear_seen(Interrupted(change_hands), "video:1", lease.token, by="a test")

    assert outcome is Outcome.CHANGED_HANDS
    assert holder is not None
    assert holder.token == lease.token
    (successor,) = successors
    assert successor is not None
    assert successor.extend()


def test_lease_that_ends_in_that_moment_is_said_to_have(lease: Lease) -> None:
    outcome, _ = clear_seen(Interrupted(lease.release), "video:1", lease.token, by="a test")
    assert outcome is Outcome.NOT_LOCKED
