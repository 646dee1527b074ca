"""Deadlocks are named, and what is none is not called one. With processes that really wait."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock._values.lock_info import LockInfo
from django_tasklock._values.owner import Owner
from django_tasklock.operators import deadlocks as module
from django_tasklock.operators.deadlocks import Wait, cycles_of
from django_tasklock.operators.doctor import Problem, diagnose
from tests.conftest import UseCaches, UseRedis
from tests.steps import LONG, Meanwhile, silent, taken, waiting
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
Environment = Callable[[], dict[str, str]]

HOLDS_AND_WAITS = """
import sys, threading
import django
django.setup()
from django_tasklock import locks
held, wanted, name = sys.argv[1:]
threading.current_thread().name = name
lease = locks.acquire(held, ttl=600, renew=True)
print(bool(lease), flush=True)
sys.stdin.readline()
second = locks.acquire(wanted, ttl=600, wait=300)
print(bool(second), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def found() -> list[Problem]:
    return [problem for problem in diagnose() if problem.kind == "deadlock"]


class Process:
    """Another process: it holds one lock and, once told so, waits for another."""

    def __init__(self, env: dict[str, str], held: str, wanted: str, thread: str) -> None:
        self.wanted = wanted
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDS_AND_WAITS, held, wanted, thread],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def holds(self) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == "True\n"

    def wait(self) -> None:
        before = waiting(self.wanted)
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        until(lambda: waiting(self.wanted) == before + 1)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def processes(env: dict[str, str], *arguments: tuple[str, str, str]) -> Iterator[list[Process]]:
    running = [Process(env, *each) for each in arguments]
    try:
        for each in running:
            each.holds()
        yield running
    finally:
        for each in running:
            each.end()


@pytest.mark.slow
def test_two_processes_that_wait_for_each_other_are_named_once(
    on_redis: None, process_env: Environment
) -> None:
    # Given two processes, each of which holds a lock and waits for the other's
    wants = ("a", "-b;x", "one"), ("-b;x", "a", "two")
    with processes(process_env(), *wants) as (one, two):
        one.wait()
        assert found() == []  # One that waits for the other is no deadlock yet.
        two.wait()

        # I expect one finding, which says who waits for what and who holds it
        (problem,) = found()
        host = os.uname().nodename
        first, second = f"{host}:{one.pid} (one)", f"{host}:{two.pid} (two)"
        assert problem.what == "-b;x"
        assert problem.serious
        assert problem.message.startswith(
            f"{first} waits for the lock -b;x, held by {second}; "
            f"{second} waits for the lock a, held by {first}; the first of these leases ends in "
        )
        assert problem.message.endswith(" unless renewed")
        assert problem.command == "manage.py locks clear -- '-b;x'"
        assert json.loads(json.dumps(problem.as_json()))["lock"] == "-b;x"

        # When one of the two is killed, I expect it to be over at once
        two.end()
        assert found() == []


def test_a_chain_is_no_deadlock(on_redis: None, process_env: Environment) -> None:
    wants = ("a", "b", "same"), ("b", "c", "same")
    with processes(process_env(), *wants) as (one, two):
        lease = taken("c", ttl=600)
        one.wait()
        two.wait()
        assert found() == []
        lease.release()


@pytest.mark.parametrize("names", [("first", "second"), ("worker", "worker")])
def test_two_threads_of_one_process_are_two(on_redis: None, names: tuple[str, str]) -> None:
    """Thread 1 holds a; thread 2 holds nothing and waits for it, whatever both are called."""
    over = threading.Event()
    held = threading.Event()

    def hold() -> None:
        threading.current_thread().name = names[0]
        lease = taken("a", ttl=600)
        held.set()
        over.wait(300)
        lease.release()

    def wait() -> None:
        threading.current_thread().name = names[1]
        taken("a", wait=300).release()

    holding = Meanwhile(hold)
    assert held.wait(LONG)
    wants = Meanwhile(wait)
    until(lambda: waiting("a") == 1)
    try:
        assert found() == []
    finally:
        over.set()
    holding.result()
    wants.result()


def test_threads_that_wait_for_each_other_are_found(on_redis: None) -> None:
    both = threading.Barrier(2)

    def take(held: str, wanted: str) -> bool:
        lease = taken(held, ttl=600)
        both.wait(LONG)
        second = locks.acquire(wanted, ttl=600, wait=300)
        lease.release()
        if second:
            second.release()
        return second is not None

    threads = [Meanwhile(lambda: take("a", "b")), Meanwhile(lambda: take("b", "a"))]
    until(lambda: waiting("a") + waiting("b") == 2)
    (problem,) = found()
    assert "waits for the lock b, held by" in problem.message
    # What the hint says ends it
    assert locks.clear(str(problem.lock))
    assert all(thread.result() for thread in threads)
    assert found() == []


def test_a_thread_that_waits_for_its_own_lock(on_redis: None) -> None:
    def twice() -> None:
        taken("a", ttl=600)
        assert locks.acquire("a", ttl=600, wait=300)

    thread = Meanwhile(twice)
    until(lambda: waiting("a") == 1)
    (problem,) = found()
    assert "waits for the lock a, which it holds itself; the lease ends in " in problem.message
    assert "reentrant=True" in problem.hint
    assert locks.clear("a")
    thread.result()


def test_asyncio_tasks_of_one_thread_and_name_are_two(on_redis: None) -> None:
    async def hold(held: asyncio.Event, over: asyncio.Event) -> None:
        lease = await locks.aacquire("a", ttl=600)
        assert lease
        held.set()
        await over.wait()
        await lease.arelease()

    async def wait() -> None:
        lease = await locks.aacquire("a", ttl=600, wait=300)
        assert lease
        await lease.arelease()

    async def both() -> list[Problem]:
        held, over = asyncio.Event(), asyncio.Event()
        holding = asyncio.create_task(hold(held, over), name="same")
        await held.wait()
        waits = asyncio.create_task(wait(), name="same")
        try:
            await asyncio.to_thread(until, lambda: waiting("a") == 1)
            return await asyncio.to_thread(found)
        finally:
            over.set()
            await asyncio.gather(holding, waits)

    assert asyncio.run(both()) == []


def test_more_waiters_than_are_looked_at_are_said(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LOCKS", 1)
    leases = [taken("a", ttl=600), taken("b", ttl=600)]
    threads = [Meanwhile(lambda name=name: taken(name, wait=300).release()) for name in "ab"]  # type: ignore[misc]
    until(lambda: waiting("a") + waiting("b") == 2)
    (problem,) = found()
    assert (problem.what, problem.serious) == ("default", False)
    assert "and there are more" in problem.message
    for lease in leases:
        lease.release()
    for thread in threads:
        thread.result()
    assert found() == []


def test_a_store_that_does_not_answer_hides_no_deadlock_of_another(
    use_caches: UseCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two stores, and in the second a thread that waits for its own lock
    memory = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
    use_caches({}, {"default": memory, "other": memory})
    other = locks.using("other")

    def twice() -> None:
        assert other.acquire("a", ttl=600)
        assert other.acquire("a", ttl=600, wait=300)

    thread = Meanwhile(twice)
    until(lambda: other.waiters("a"), "it waits")

    # When the first does not answer
    silent(monkeypatch, "search", "count", "list", "walk", "walk_matching")
    problems = [(each.kind, each.store) for each in diagnose()]

    # I expect to hear of both
    assert ("deadlock", "other") in problems
    assert ("server", "default") in problems
    assert other.clear("a")
    thread.result()


# ------------------------------------------------------------------------------ cycles alone


def owner(thread: str) -> Owner:
    return Owner("host", 7, boot="b", pidns="n", start=1, thread=thread)


def wait(waiter: str, name: str, holder: str) -> Wait:
    info: Any = LockInfo(name, 60, None, "token", owner(holder), "default", name)
    return Wait(owner(waiter), info)


def names(waits: list[Wait]) -> list[list[str]]:
    return [[each.info.name for each in cycle] for cycle in cycles_of(waits)]


def test_cycles_of_any_length_are_found_once() -> None:
    many = [wait(str(n), f"l{(n + 1) % 300:03}", str((n + 1) % 300)) for n in range(300)]
    for turned in (many, many[100:] + many[:100], many[::-1]):
        (cycle,) = names(turned)
        assert cycle == [f"l{n:03}" for n in range(300)]


def test_chains_trees_and_diamonds_have_no_cycle() -> None:
    assert names([]) == []
    assert names([wait("a", "l1", "b"), wait("b", "l2", "c"), wait("d", "l2", "c")]) == []
    diamond = [
        wait("a", "l1", "b"),
        wait("a", "l2", "c"),
        wait("b", "l3", "d"),
        wait("c", "l3", "d"),
    ]
    assert names(diamond) == []


def test_what_leads_into_a_cycle_is_no_part_of_it() -> None:
    waits = [
        wait("x", "l1", "a"), wait("a", "l2", "b"), wait("b", "l1", "a"), wait("y", "l2", "b"),
        wait("p", "m1", "q"), wait("q", "m2", "p"), wait("z", "s", "z"),
    ]  # fmt: skip
    assert sorted(names(waits)) == [["l1", "l2"], ["m1", "m2"], ["s"]]


def test_of_two_cycles_that_share_a_wait_one_is_found() -> None:
    waits = [wait("a", "l1", "b"), wait("b", "l2", "a"), wait("b", "l3", "c"), wait("c", "l4", "a")]
    assert names(waits)


def test_a_killed_waiter_is_none(on_redis: None, process_env: Environment) -> None:
    with processes(process_env(), ("a", "b", "t"), ("b", "a", "t")) as (one, two):
        one.wait()
        two.wait()
        assert len(found()) == 1
        os.kill(one.pid, signal.SIGKILL)
        one.end()
        assert found() == []
