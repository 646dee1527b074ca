"""Processes that are killed and stopped at random: no two holders overlap, and no kill costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from django_tasklock import locks
from django_tasklock.stores.base import BaseStore
from tests.agent import environment
from tests.contenders import HELD_SECONDS, NAME, NAMES, SLOTS, TTL_SECONDS, Deed, Ledger
from tests.seeds import drawn_seed
from tests.steps import LONG
from tests.store_cases import STORE_CASES
from tests.waiting import until

pytestmark = pytest.mark.slow

PROCESSES = 7
TURNS, COOLING_TURNS = 80, 30
ROUNDING_SECONDS = 0.002  # Redis counts milliseconds.


def on(store: str, *values: Any, night: bool = False) -> ParameterSet:
    """A test on the store of this name in `STORE_CASES`, with more values."""
    cases = [case if isinstance(case, ParameterSet) else pytest.param(case) for case in STORE_CASES]
    (case,) = [case for case in cases if case.values[0].id == store]  # type: ignore[union-attr]
    marks = (*case.marks, *[pytest.mark.nightly] * night)
    return pytest.param(*values, case.values[0], marks=marks, id="-".join([*values, store]))


EVERY_DAY = ("redis-pickle", "database-store-postgres")
KINDS = ("plain", "permits", "readers", "several", "reentrant", "cooling")


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        *(on(store, kind) for store in EVERY_DAY for kind in KINDS),
        on("memcached", "asking"),
        *(on(f"database-store-{each}", "asking", night=True) for each in ("sqlite", "mariadb")),
        on("quorum", "asking", night=True),
        *(on(each, "plain", night=True) for each in ("redis-cluster", "zookeeper")),
        *(on(each, "readers", night=True) for each in ("redis-cluster", "zookeeper", "quorum")),
    ],
    indirect=["store"],
)
def test_no_two_holders_overlap_and_every_kill_costs_nothing(
    kind: str, store: BaseStore, tmp_path: Path
) -> None:
    # Given processes that take turns at locks, and are killed at work and while they wait
    deeds = contend(kind, tmp_path)
    killed = {deed.pid for deed in deeds if deed.what == "K"}
    # I expect no two at one lock at once, and fences that grow
    cut_short, longest = 0, 0.0  # holders that were killed at work, and seconds of a pause
    entered_or_left = [deed for deed in deeds if deed.what in "EL"]
    for key in {deed.key for deed in entered_or_left}:  # of a lock or permit
        its = [deed for deed in entered_or_left if deed.key == key]
        if store.supports_fence:
            entries = [deed for deed in its if deed.what == "E"]
            fences = [deed.fence for deed in entries if deed.fence or kind != "readers"]
            assert len(fences) > 1
            assert fences == sorted(set(fences)), "a fence did not grow"
        for deed, later in pairwise(its):
            longest = max(longest, later.at - deed.at)
            if (deed.what, later.what) == ("E", "L"):
                assert (deed.fence, deed.pid) == (later.fence, later.pid), f"two at once: {key}"
                continue
            assert later.what == "E", "somebody left who had not entered"
            if deed.what == "E":
                assert deed.pid in killed, f"two at once: {key}"
                cut_short += 1
    # And each lock of a dead process to be taken over at once
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
    arguments = map(str, (path, seed, kind, PROCESSES, turns))
    command = [sys.executable, "-m", "tests.contenders", *arguments]
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=environment(), **options) as process:
        try:
            _, errors = process.communicate(timeout=200)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return Ledger(path).deeds()


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
    if kind in ("permits", "readers"):
        leases = [locks.acquire(NAME, slots=SLOTS, wait=LONG) for _ in range(SLOTS)]
    else:
        leases = [locks.acquire(name, wait=LONG) for name in NAMES]
    assert all(leases), "one is stuck"
    assert time.monotonic() - began < TTL_SECONDS / 4
    assert all(lease.release() for lease in leases if lease)
    if store.supports_listing:
        until(lambda: locks.count() == 0)
