"""Waiting on a cache that hands nothing over: asked again and again, and at the lease's end."""

from __future__ import annotations

import statistics
import time

import pytest

from django_tasklock import locks
from django_tasklock._values import clock
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, all_of, taken
from tests.store_cases import own_prefix

SOON_SECONDS = 5.0
"""seconds that no waiter should need, of a lease that lasts much longer"""


class TestPlainCache:
    @pytest.fixture(autouse=True)
    def on_locmem(self, use_caches: UseCaches) -> None:
        backend = "django.core.cache.backends.locmem.LocMemCache"
        use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}})

    def test_polling_ends_with_the_lease_however_far_it_has_backed_off(self) -> None:
        def late(number: int, ttl: float) -> float:
            ends = clock.now() + ttl
            taken(f"video:{number}", ttl=ttl, renew=False)
            taken(f"video:{number}", wait=None)
            return clock.now() - ends

        lateness = all_of(*(lambda n=n: late(n, 1.2 + n / 10) for n in range(9)))
        assert min(lateness) >= 0
        assert statistics.median(lateness) < 0.15, "as from a delay of up to a second"

    def test_release_is_found_by_polling(self) -> None:
        lease = taken("video:1")
        thread = Meanwhile(lambda: taken("video:1", wait=LONG))
        time.sleep(0.05)
        assert thread.is_alive()
        lease.release()
        thread.result(SOON_SECONDS)

    def test_wait_is_over_in_time(self) -> None:
        taken("video:1")
        began = time.monotonic()
        assert locks.acquire("video:1", wait=0.3) is None
        assert 0.3 <= time.monotonic() - began < SOON_SECONDS
