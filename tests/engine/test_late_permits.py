"""A permit that is handed over in a stall of the server."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._engine import permits as permits_module
from django_tasklock._engine.permit_queue import leave_queues
from tests.conftest import UseRedis
from tests.engine.test_slots import permit
from tests.servers import RedisServer
from tests.steps import Meanwhile, waiting
from tests.waiting import until


def test_a_permit_is_not_given_up_after_it_was_taken(
    own_redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stalls, longer than the lease and than its client waits, while the first waiter
    leaves the queue of the other permit."""
    use_redis(own_redis_server.url, SOCKET_TIMEOUT=2.0)
    _first, second = permit(ttl=1.0), permit()
    leave, calls = leave_queues, []

    def stalled(queues: Any, **options: Any) -> Any:
        calls.append(options)
        if len(calls) > 1:
            return leave(queues, **options)
        own_redis_server.pause()
        try:
            return leave(queues, **options)
        finally:
            own_redis_server.resume()

    monkeypatch.setattr(permits_module, "leave_queues", stalled)
    waits = Meanwhile(lambda: locks.acquire("pool", slots=2, ttl=1.5, wait=None))
    until(lambda: waiting("pool#1") == waiting("pool#2") == 1, "the waiter in both queues")
    # Handed over; then comes the stall, maybe before the answer.
    with contextlib.suppress(StoreUnavailable):
        assert second.release()
    try:
        lease = waits.result()
    except StoreUnavailable:
        return  # An outage is an error of its own.
    assert lease is not None
    while lease.remaining > 0.1:
        info = locks.get(lease.name)
        assert info is not None, f"{lease} has {lease.remaining} s left, and nobody holds it"
        assert info.token == lease.token
        time.sleep(0.02)
