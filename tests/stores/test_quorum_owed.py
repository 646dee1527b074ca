"""What is owed to a member of a quorum."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock._values import clock
from django_tasklock.stores.quorum.owed import Owed
from django_tasklock.stores.quorum.quorum_lease import QuorumLease
from tests.waiting import until


def test_a_release_that_a_mistake_of_the_store_has_ended_may_be_owed_again() -> None:
    released: list[Any] = []

    def release(lease: QuorumLease) -> bool:
        released.append(lease)
        if len(released) == 1:
            raise KeyError("a store's mistake")
        return True

    owed = Owed(0, release)
    lease: Any = type("Lease", (), {"owed": {}})()
    for number in range(2):
        owed.add(lease, clock.now() + 60)
        make: Any = None

        def due() -> bool:
            nonlocal make
            make = owed.next()
            return callable(make)

        until(due, "the release is due")
        if number == 0:
            with pytest.raises(KeyError):
                make()
        else:
            make()
    assert len(released) == 2
    assert lease.owed == {}
