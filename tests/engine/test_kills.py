"""Processes that are killed and stopped at random: no two holders overlap, and no kill costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from django.conf import settings
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock.stores.base import BaseStore
from tests.agent import Agent, environment
from tests.contenders import HELD_SECONDS, NAME, NAMES, SLOTS, TTL_SECONDS, Deed, Ledger
from tests.seeds import drawn_seed
from tests.steps import LONG, Meanwhile, holder, taken
from tests.store_cases import STORE_CASES
from tests.waiting import until

pytestmark = pytest.mark.slow

PROCESSES = 7
TURNS = 80
COOLING_TURNS = 30
ROUNDING_SECONDS = 0.002
"""Redis counts milliseconds"""
SHORT = 1.5


def on(store: str, *values: Any, night: bool = False) -> ParameterSet:
    """A test on the store of this name in `STORE_CASES`, with more values."""
    cases = [case if isinstance(case, ParameterSet) else pytest.param(case) for case in STORE_CASES]
    (case,) = [case for case in cases if case.values[0].id == store]  # type: ignore[union-attr]
    marks = (*case.marks, *([pytest.mark.nightly] if night else []))
    return pytest.param(*values, case.values[0], marks=marks, id="-".join([*values, store]))


EVERY_DAY = ("redis-pickle", "database-store-postgres")
KINDS = ("plain", "permits", "several", "reentrant", "cooling")

on_stores = pytest.mark.parametrize("store", [on(each) for each in EVERY_DAY], indirect=True)


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        *(on(store, kind) for store in EVERY_DAY for kind in KINDS),
        on("memcached", "asking"),
        *(on(f"database-store-{each}", "asking", night=True) for each in ("sqlite", "mariadb")),
        on("quorum", "asking", night=True),
        *(on(each, "plain", night=True) for each in ("redis-cluster", "zookeeper")),
    ],
    indirect=["store"],
)
def test_no_two_holders_overlap_and_every_kill_costs_nothing(
    kind: str, store: BaseStore, tmp_path: Path
) -> None:
    deeds = contend(kind, tmp_path)
    killed = {deed.pid for deed in deeds if deed.what == "K"}
    cut_short, longest = 0, 0.0  # holders that were killed at work, and seconds of a pause
    for key, of_key in by_key(deeds).items():
        for deed, later in pairwise(of_key):
            longest = max(longest, later.at - deed.at)
            if (deed.what, later.what) == ("E", "L"):
                assert (deed.fence, deed.pid) == (later.fence, later.pid), f"two at once: {key}"
                continue
            assert later.what == "E", "somebody left who had not entered"
            assert later.fence > deed.fence or not store.supports_fence, "a fence did not grow"
            if deed.what == "E":
                assert deed.pid in killed, f"two at once: {key}"
                cut_short += 1
    assert len(killed) > PROCESSES, "the processes were killed in the end only"
    assert cut_short > 0
    assert longest < TTL_SECONDS / 4, "the lock of a dead process was not taken over"
    if kind == "cooling":
        assert_free_neither_early_nor_late(deeds)
    assert_nothing_is_left(kind, store)


def contend(kind: str, folder: Path) -> list[Deed]:
    """What processes do that contend for this test's locks. None of them outlives this call."""
    seed, path = drawn_seed(), str(folder / "ledger")
    turns = COOLING_TURNS if kind == "cooling" else TURNS
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contenders", *map(str, (path, seed, kind, PROCESSES, turns))],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=200)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # Which closes its pipe, and waits.
            pass
    assert process.returncode == 0, errors
    return Ledger(path).deeds()


def by_key(deeds: list[Deed]) -> dict[str, list[Deed]]:
    """Who entered and who left, for each lock or permit."""
    found = defaultdict(list)
    for deed in deeds:
        if deed.what in "EL":
            found[deed.key].append(deed)
    return found


def assert_free_neither_early_nor_late(deeds: list[Deed]) -> None:
    """Where the release has returned the lock was taken until its time, whoever died then."""
    released = {deed.fence for deed in deeds if deed.what == "R"}
    taken_over = 0
    for deed, later in pairwise([deed for deed in deeds if deed.what == "E"]):
        if deed.fence in released:
            assert later.at - deed.asked >= HELD_SECONDS - ROUNDING_SECONDS, "free early"
        else:
            taken_over += later.at - deed.at < HELD_SECONDS
    assert released
    assert taken_over > 0, "no death came before the lock was cooling"


def assert_nothing_is_left(kind: str, store: BaseStore) -> None:
    """Those who were killed last have locks that stand for a minute, and positions in queues."""
    began = time.monotonic()
    if kind == "permits":
        leases = [locks.acquire(NAME, slots=SLOTS, wait=LONG) for _ in range(SLOTS)]
    else:
        leases = [locks.acquire(name, wait=LONG) for name in NAMES]
    assert all(leases), "one is stuck"
    assert time.monotonic() - began < TTL_SECONDS / 4
    assert all(lease.release() for lease in leases if lease)
    if store.supports_listing:
        until(lambda: locks.count() == 0)


@on_stores
def test_without_takeover_the_lock_of_the_dead_is_free_after_its_ttl(store: BaseStore) -> None:
    """As that of a host that died: nobody can ask there whether the process lives."""
    configured = dict(settings.TASKLOCK["default"])
    options = configured.get("OPTIONS", {}) | {"TAKEOVER": False}
    without = settings.TASKLOCK | {"default": configured | {"OPTIONS": options}}
    with override_settings(TASKLOCK=without), Agent() as other:
        asked = time.monotonic()
        other.ask("acquire", name=NAME, ttl=SHORT)
        other.kill()
        assert locks.acquire(NAME) is None
        lease = locks.acquire(NAME, wait=LONG)
    assert lease is not None
    assert time.monotonic() - asked >= SHORT


@on_stores
def test_who_is_stopped_for_longer_than_the_ttl_has_lost_the_lock(store: BaseStore) -> None:
    with Agent() as agent:
        agent.ask("enter", name=NAME, ttl=SHORT, renew=True)
        agent.stop()
        lease = locks.acquire(NAME, ttl=LONG, wait=LONG)
        assert lease is not None
        agent.resume()
        # I expect it to be told, and to change nothing
        assert agent.ask("assert_held")["error"] == "LeaseLost"
        assert agent.ask("extend", ttl=10 * LONG) is False
        assert agent.ask("release") is False
        assert agent.ask("held") is False
        assert agent.ask("leave")["error"] == "LeaseLost"
    info = holder(NAME)
    assert info.token == lease.token
    assert info.ttl is not None
    assert info.ttl <= LONG
    assert lease.release()


@on_stores
def test_waiters_of_several_processes_are_served_in_their_order(store: BaseStore) -> None:
    with Agent() as second:
        lease = taken(NAME)
        first = Meanwhile(lambda: taken(NAME, wait=LONG))
        until(lambda: len(locks.waiters(NAME)) == 1)
        second.tell("acquire", name=NAME, wait=LONG)
        until(lambda: len(locks.waiters(NAME)) == 2)
        third = Meanwhile(lambda: taken(NAME, wait=LONG))
        until(lambda: len(locks.waiters(NAME)) == 3)
        assert lease.release()
        assert first.result().release()
        assert second.answer() is not None
        assert third.is_alive()
        assert second.ask("release") is True
        assert third.result().release()
