"""Where the time of one acquire goes: each of its steps alone, and what is left over."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from django_tasklock import locks
from django_tasklock._compat.redis import pack
from django_tasklock._engine.lease import Lease
from django_tasklock._values.arguments import checked_flag, checked_name, checked_ttl, checked_wait
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.record import new_record
from django_tasklock.stores.redis.client import as_bytes
from django_tasklock.stores.redis.leases import ACQUIRE

from ..bench import Bench
from ..counting import Counter
from ..peers import OURS
from ..raw import RAW, RawSocket
from ..rounds import Spread
from ..tables import Cell, Table

__all__ = ["run"]

LOCK_NAME = "video:123"


def run(bench: Bench) -> list[Table]:
    store: Any = locks.store
    lease = locks.acquire(LOCK_NAME, ttl=60)
    assert lease is not None
    record, token, value = owner_record(None, None), lease.token, lease._proof
    keys = store.keyspace.keys(LOCK_NAME)
    arguments = (len(keys), *keys, value, 60_000, LOCK_NAME, b"")
    command = (b"EVALSHA", ACQUIRE.sha, *map(as_bytes, arguments))
    exchange = store.client._connections.exchange

    def checks() -> None:
        checked_name(LOCK_NAME)
        checked_ttl(60)
        checked_wait(0)
        checked_flag("renew", False)

    steps: dict[str, Callable[[], object]] = {
        "the arguments are checked": checks,
        "a token is drawn": new_token,
        "the owner's record": lambda: owner_record(None, None),
        "the record, encoded by the cache": lambda: store.client.encode(new_record(token, record)),
        "the keys, made by the cache": lambda: store.keyspace.keys(LOCK_NAME),
        "the command, packed": partial(pack or (lambda _: None), command),
        "the lease": lambda: Lease(
            locks, "default", LOCK_NAME, token, 1, 60.0, 1e9, record, value, False
        ),
    }
    number, repeats = bench.pick((10, 2), (2_000, 15))
    times = {name: _measured(step, number, repeats) for name, step in steps.items()}
    # Asked again for its own value, the script grants again: the same commands, but for the SET.
    asked = _measured(lambda: exchange(command, again=True), number, repeats)
    raw = RawSocket(bench.url)
    plain = _measured(lambda: raw.release(raw.acquire("")), number, repeats)
    lease.release()
    counter = Counter(bench.redis)
    whole = _measured(_pair, number, repeats)
    server = counter.counts().microseconds / (number * repeats)
    times["sent, carried out by Redis, and read; all but the packing"] = Spread.of(
        [max(0.0, asked.median - times["the command, packed"].median)]
    )
    total = sum(spread.median for spread in times.values())
    rows: list[dict[str, Cell]] = [
        {"step": name, "us": spread, "of the acquire, %": 100 * spread.median / total}
        for name, spread in times.items()
    ]
    rows += [
        {"step": "all of these", "us": total},
        {"step": f"{OURS}: acquire + release", "us": whole},
        {"step": f"of which in Redis, by its own clock: {server:.0f} us"},
        {"step": f"{RAW}: SET NX PX, and compare-and-delete", "us": plain},
    ]
    return [Table("parts", "One acquire, step by step, in one thread", rows)]


def _pair() -> None:
    lease = locks.acquire(LOCK_NAME, ttl=60)
    assert lease is not None
    lease.release()


def _measured(step: Callable[[], object], number: int, repeats: int) -> Spread:
    step()
    took = timeit.repeat(step, number=number, repeat=repeats)
    return Spread.of([seconds / number * 1_000_000 for seconds in took])
