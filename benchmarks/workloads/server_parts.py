"""Where Redis's processor time of an acquire with its release goes: scripts that do ever more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.record import new_record
from django_tasklock.stores.redis.leases import ACQUIRE, RELEASE
from django_tasklock.stores.redis.script import numbered

from ..bench import Bench
from ..counting import Counter
from ..peers import FLOOR, OURS
from ..raw import RawSocket, packed
from ..rounds import interleaved
from ..tables import Cell, Table

__all__ = ["run"]

LOCK_NAME = "video:123"
TTL_MS = b"60000"
NUMBER = b"123456789012345"
"""of the call, which a reply begins with"""
STEPS: dict[str, tuple[list[str], list[str]]] = {
    "two scripts that do nothing, with our arguments": ([], []),
    "and the key": (
        ["redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')"],
        ["if redis.call('GET', KEYS[1]) ~= ARGV[1] then return '0' end"],
    ),
    "and the index": (
        ["redis.call('ZADD', KEYS[2], '1795575067918', ARGV[3])"],
        ["redis.call('ZREM', KEYS[2], ARGV[2])"],
    ),
    "and the fences": (
        [
            "local time, last = redis.call('TIME'), redis.call('HGET', KEYS[3], '')",
            "local fence = time[1] .. string.sub('00000' .. time[2], -6)",
            "redis.call('HSET', KEYS[3], '', fence, ARGV[3], fence)",
        ],
        ["redis.call('HDEL', KEYS[3], ARGV[2])"],
    ),
    "and the look whether anybody waits": (
        ["redis.call('EXISTS', KEYS[4])"],
        ["redis.call('ZRANGE', KEYS[4], '0', '1')"],
    ),
}
"""for each step what it adds to the acquire and to the release"""


def run(bench: Bench) -> list[Table]:
    store: Any = locks.store
    value = store.client.encode(new_record(new_token(), owner_record(None, None)))
    keys = store.keyspace.keys(LOCK_NAME)
    name = LOCK_NAME.encode()
    raw = RawSocket(bench.url)

    def script(text: bytes | str, *arguments: bytes) -> bytes:
        sha: str = bench.redis.script_load(text)
        return packed("EVALSHA", sha, str(len(keys)), *keys, *arguments, NUMBER)

    def pair(acquire: bytes | str, release: bytes | str) -> Callable[[], object]:
        first, second = script(acquire, value, TTL_MS, name), script(release, value, name)
        return lambda: (raw.ask(first), raw.ask(second))

    pairs: dict[str, Callable[[], object]] = {FLOOR: lambda: raw.release(raw.acquire(""))}
    acquire: list[str] = []
    release: list[str] = []
    for title, (more, more_at_the_end) in STEPS.items():
        acquire, release = acquire + more, release + more_at_the_end
        delete = ["redis.call('DEL', KEYS[1])"] if acquire else []
        pairs[title] = pair(_script(acquire), _script(release + delete))
    pairs[f"{OURS}: all that its scripts do"] = pair(ACQUIRE.text, RELEASE.text)
    works = {title: partial(_seconds, bench, work) for title, work in pairs.items()}
    for work in works.values():
        work()
    measured = interleaved(works[FLOOR], works, bench.pick(1, 40))
    rows: list[dict[str, Cell]] = [
        {
            "what Redis does": title,
            "server's CPU, us": paired.seconds.times(1_000_000),
            "over the floor": paired.ratio,
        }
        for title, paired in measured.items()
    ]
    note = (
        "Each row does what the row above does as well, and is sent by a bare socket that waits "
        "for each reply."
    )
    title = "Acquire + release: what Redis's processor time is spent on"
    return [Table("server-parts", title, rows, notes=[note])]


def _script(statements: Sequence[str]) -> str:
    return numbered("\n".join([*statements, "return '1'"]))


def _seconds(bench: Bench, pair: Callable[[], object]) -> float:
    """The server's processor seconds for one pair."""
    times = bench.pick(16, 400)
    counter = Counter(bench.redis)
    for _ in range(times):
        pair()
    return counter.counts().seconds_each(times)
