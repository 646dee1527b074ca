"""The scripts do on a real Redis what the model says of them."""

from __future__ import annotations

import os
import secrets
from random import Random

import pytest

from django_tasklock.stores.redis import leases, store
from django_tasklock.stores.redis.script import Script
from tests.conftest import UseRedis
from tests.model.walk import Differs, walk

STEPS = 30
SCRIPTS = (leases.ACQUIRE, leases.RELEASE, leases.CLEAR, leases.LEAVE_QUEUE, store.EXTEND)

MUTANTS = {
    "release without the compare": (
        "if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then",
        "if not redis.pcall('GET', KEYS[1]) then",
    ),
    "extend without the compare": (
        "if value_of_lock(KEYS[i]) == ARGV[at + 1] then",
        "if value_of_lock(KEYS[i]) then",
    ),
    "clear without the compare": (
        "if not held or (ARGV[2] and held ~= ARGV[2]) then",
        "if not held then",
    ),
    "a queue served last-first": ("redis.call('ZRANGE', queue,", "redis.call('ZREVRANGE', queue,"),
    "no look whether the waiter is dead": (
        "(counts[2 * i] > 0 or member == me) and found or dead",
        "found",
    ),
    "an acquire that forgets its own token": ("if held == value then", "if false then"),
    "a hand-over without ttl": ("redis.call('SET', key, value, 'PX', ttl)\n  if #first",
                                "redis.call('SET', key, value)\n  if #first"),
    "a newcomer before the queue": ("if redis.call('EXISTS', queue) == 1 then", "if false then"),
    "a waiter that asks again loses its position": (
        "number = redis.call('ZSCORE', queue, before) or number",
        "number = number",
    ),
    "who leaves with the lock is not told": ("if held == ARGV[2] then return fence end", ""),
    "who leaves tells nobody": ("rank < NOTIFIED_WAITERS", "false"),
    "a hand-over that tells only the first": ("if #first > 1 then", "if false then"),
    "a clear that leaves no trace": ("if left > 0 then", "if false then"),
    "a fence that stays": ("last + 1)", "last)"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def seed() -> str:
    """``MODEL_SEED=…`` takes the same walks again."""
    return os.environ.get("MODEL_SEED") or secrets.token_hex(4)


def walks(count: int) -> None:
    chosen = seed()
    print(f"MODEL_SEED={chosen}")
    for at in range(count):
        walk(f"walk:{at}", Random(f"{chosen}-{at}"), STEPS)


@pytest.mark.parametrize("part", range(4))
def test_scripts_take_the_steps_of_the_model(part: int) -> None:
    walks(75)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_script_without_a_protection_is_noticed(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the script's text, in the place of the script."""
    protection, without = MUTANTS[mutant]
    changed = 0
    for script in SCRIPTS:
        text = script.text.decode()
        if protection in text:
            copy = object.__new__(Script)
            copy._set(text.replace(protection, without))
            monkeypatch.setattr(script, "text", copy.text)
            monkeypatch.setattr(script, "sha", copy.sha)
            changed += 1
    assert changed, "no script has this protection in these words"
    with pytest.raises(Differs) as caught:
        walks(150)
    print(caught.value)
