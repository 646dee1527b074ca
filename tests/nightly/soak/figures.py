"""What the long-lived processes and Redis have: looked at after the warm-up, and at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil
import redis

__all__ = ["Figures", "Used", "keep", "kept", "keys_by_kind", "listed", "look", "table"]

KINDS = (" queue", " index", " listed", " fences", " history", " history rare")
"""what the keys of a store end in"""
EVENTS = "locks: events"
FILE = "figures.json"
"""in a soak's folder"""


class Used(NamedTuple):
    """What one process has."""

    rss: int
    pss: int
    descriptors: int
    threads: int


class Figures(NamedTuple):
    """One look."""

    processes: dict[str, Used]
    """by what it is, with its pid: one that lives at both looks has one name"""
    keys: dict[str, int]
    memory: int
    """of Redis, in bytes"""


def used_by(pid: int) -> Used:
    process = psutil.Process(pid)
    memory = process.memory_full_info()
    return Used(memory.rss, memory.pss, process.num_fds(), process.num_threads())


def look(processes: Mapping[str, int], clients: Mapping[str, redis.Redis]) -> Figures:
    """``processes``: pids by their names; ``clients``: one for each database that is used."""
    keys: Counter[str] = Counter()
    for what, client in clients.items():
        keys += keys_by_kind(what, client)
    any_client = next(iter(clients.values()))
    memory = int(any_client.info("memory")["used_memory"])
    keys["channels with a subscriber"] = len(any_client.pubsub_channels())
    return Figures({name: used_by(pid) for name, pid in processes.items()}, dict(keys), memory)


def keys_by_kind(what: str, client: redis.Redis) -> Counter[str]:
    """How many keys a database has of each kind; of an index, a hash and a stream how large."""
    found: Counter[str] = Counter()
    for raw in client.scan_iter(count=1000):
        key = raw.decode(errors="replace")
        if what != "locks":
            found[f"{what}: {_of_celery(key)}"] += 1
            continue
        ending = next((kind for kind in reversed(KINDS) if key.endswith(kind)), "")
        if ending in (" index", " listed"):
            found[f"locks: entries of the{ending}"] += client.zcard(raw)
        elif ending == " fences":
            found["locks: fences"] += client.hlen(raw)
        elif "history" in ending:
            found[EVENTS] += client.xlen(raw)
        elif ending == " queue":
            found["locks: wait queues"] += 1
        else:
            found[f"locks: {'notes' if ' ' in key else 'leases'}"] += 1
    return found


def _of_celery(key: str) -> str:
    return key.partition("-task-meta-")[0] if "-task-meta-" in key else key.partition("\x06")[0]


def keep(folder: Path, before: Figures, after: Figures) -> None:
    (folder / FILE).write_text(json.dumps([before, after]))


def kept(folder: Path) -> tuple[Figures, Figures]:
    """Those of a soak that has left a folder."""
    before, after = (
        Figures({name: Used(*used) for name, used in processes.items()}, keys, memory)
        for processes, keys, memory in json.loads((folder / FILE).read_text())
    )
    return before, after


def listed(before: Figures, after: Figures) -> Iterator[str]:
    """What `table` has, short, as a list in Markdown."""
    for name, then, last in _alive(before, after):
        yield (
            f"* {name.rpartition(' ')[0]}: {then.rss / 1e6:.0f} → {last.rss / 1e6:.0f} MB, "
            f"{then.descriptors} → {last.descriptors} descriptors, "
            f"{then.threads} → {last.threads} threads"
        )
    keys, events = [], []
    for each in (before, after):
        events.append(each.keys.get(EVENTS, 0))
        keys.append(sum(each.keys.values()) - events[-1])
    memory = (f"{each.memory / 1e6:.1f}" for each in (before, after))
    yield (
        f"* Redis: {' → '.join(map(str, keys))} keys and entries, "
        f"{' → '.join(map(str, events))} events, {' → '.join(memory)} MB"
    )


def table(before: Figures, after: Figures) -> Iterator[str]:
    """Lines: those that live at both looks, then Redis."""
    yield f"{'':32}{'RSS MB':>16}{'PSS MB':>16}{'descriptors':>14}{'threads':>12}"
    for name, then, last in _alive(before, after):
        rss, pss = (f"{then[at] / 1e6:.1f} > {last[at] / 1e6:.1f}" for at in (0, 1))
        descriptors = f"{then.descriptors} > {last.descriptors}"
        threads = f"{then.threads} > {last.threads}"
        yield f"{name:32}{rss:>16}{pss:>16}{descriptors:>14}{threads:>12}"
    for kind in sorted(before.keys | after.keys):
        yield f"{kind:48}{before.keys.get(kind, 0)} > {after.keys.get(kind, 0)}"
    yield f"{'used_memory of Redis, MB':48}{before.memory / 1e6:.2f} > {after.memory / 1e6:.2f}"


def _alive(before: Figures, after: Figures) -> Iterator[tuple[str, Used, Used]]:
    """Those that live at both looks, with what they have then."""
    for name, then in before.processes.items():
        if (last := after.processes.get(name)) is not None:
            yield name, then, last
