"""Every store beside the same done by hand: an uncontended pair, and a lock that eight wait for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.utils.module_loading import import_string

from ..bench import Bench
from ..contenders import Contender, contenders
from ..peers import NotALock
from ..rounds import Spread, paired, turned
from ..store_columns import ENTRIES, Entry
from ..store_servers import NotHere, Site
from ..tables import Cell, Table
from ..turns import Turn, gaps, jumps

__all__ = ["run"]

CONTENDERS = 8
CONTENDERS_ARE = (
    f"The contenders are {CONTENDERS} processes; of MemoryStore, and of CacheStore on LocMemCache, "
    "that many threads of one process."
)
SESSION_LOCKS = (
    "pg_advisory_lock, which django-pglock calls, and GET_LOCK write nothing: such a lock has no "
    "ttl and no fence, ends with its connection, and keeps that connection for itself."
)
WAITING_BY_HAND = (
    "By hand a statement is sent again every 10 ms; pg_advisory_lock, django-pglock and GET_LOCK "
    "wait in the database."
)


def run(bench: Bench) -> list[Table]:
    with (
        sites(bench) as found,
        contenders(CONTENDERS, {entry.title: site.store for entry, site in found}) as crew,
    ):
        groups = [_group(entry, crew[0].ask("titles")) for entry, _ in found]
        for (entry, _), titles in zip(found, groups, strict=True):
            for title in titles:
                _prove(title, crew[0], crew[0 if entry.in_process else 1])
        servers = "; ".join(dict.fromkeys(site.about for _, site in found if site.about))
        return [_pairs(bench, crew[0], groups, servers), _hand_overs(bench, crew, found, groups)]


@contextmanager
def sites(bench: Bench) -> Iterator[list[tuple[Entry, Site]]]:
    """Start the servers of all stores that can be had here; what is started from now on has them
    in its settings."""
    found: list[tuple[Entry, Site]] = []
    more: dict[str, Any] = {"TASKLOCK": {}, "CACHES": {}, "DATABASES": {}, "INSTALLED_APPS": []}
    with ExitStack() as stack:
        for entry in ENTRIES:
            try:
                site = stack.enter_context(entry.serve(Path(bench.folder)))
                for store in site.tasklock.values():
                    import_string(store.get("BACKEND", "builtins.object"))
            except (NotHere, ImportError) as error:
                bench.say(f"{entry.title} is left out: {error}")
                continue
            found.append((entry, site))
            more["TASKLOCK"] |= site.tasklock
            more["CACHES"] |= site.caches
            more["DATABASES"] |= site.databases
            more["INSTALLED_APPS"] += [app for app in entry.apps if find_spec(app)]
        os.environ["BENCHMARK_MORE"] = json.dumps(more)
        stack.callback(os.environ.pop, "BENCHMARK_MORE")
        for alias in more["DATABASES"]:
            migrate = [
                "migrate",
                "django_tasklock",
                "--database",
                alias,
                "--verbosity",
                "0",
                "--skip-checks",
            ]
            subprocess.run([sys.executable, "-m", "django", *migrate], check=True)
        yield found


def _group(entry: Entry, titles: Sequence[str]) -> list[str]:
    """The store's columns that can be had, itself first."""
    return [title for title in titles if title.partition(":")[0] == entry.title]


def _prove(title: str, one: Contender, other: Contender) -> None:
    """Raise `NotALock` unless the column excludes, and lets go."""
    name = f"proof:{os.getpid()}"
    for holder, refused in ((one, other), (other, one)):
        if not holder.ask("take", title, name):
            raise NotALock(f"{title}: a lock that nobody holds was refused")
        if refused.ask("take", title, name):
            raise NotALock(f"{title}: two hold one lock")
        holder.ask("give_back", title)


def _pairs(
    bench: Bench, contender: Contender, groups: Sequence[Sequence[str]], servers: str
) -> Table:
    number, rounds = bench.pick((2, 2), (20, 30))
    used: dict[str, list[float]] = {title: [] for group in groups for title in group}

    def work(title: str) -> float:
        took, on_processor = contender.ask("pairs", title, number)
        used[title].append(on_processor * 1_000_000)
        return float(took)

    columns = {}
    for group in groups:
        # What stands second is the same by hand; a store without it is measured beside itself.
        floor = group[1] if len(group) > 1 else group[0]
        for title in group:
            contender.ask("pairs", title, 2)  # Connections are made.
            columns[title] = partial(work, floor), partial(work, title)
    alone = {group[0] for group in groups if len(group) == 1}
    measured = paired(columns, rounds)
    rows: list[dict[str, Cell]] = [
        {
            "column": title,
            "us a pair": each.seconds.times(1_000_000),
            "over the same by hand": None if title in alone else each.ratio,
            "of it on the caller's processor, us": Spread.of(used[title]),
        }
        for title, each in measured.items()
    ]
    notes = [
        f"{rounds} rounds of {number} pairs, in one thread. {servers}.",
        SESSION_LOCKS,
    ]
    title = "Acquire + release: every store, and the same by hand"
    return Table("stores-pairs", title, rows, "us a pair", notes)


def _hand_overs(
    bench: Bench,
    crew: Sequence[Contender],
    found: Sequence[tuple[Entry, Site]],
    groups: Sequence[Sequence[str]],
) -> Table:
    rounds, seconds = bench.pick((1, 0.5), (5, 1.5))
    # Each column, and who contends: so many threads of so many processes.
    who: dict[str, tuple[int, Sequence[Contender]]] = {}
    for (entry, _), group in zip(found, groups, strict=True):
        for title in group:
            who[title] = (CONTENDERS, crew[:1]) if entry.in_process else (1, crew)
    seen: dict[str, list[list[Turn]]] = {title: [] for title in who}
    for number in range(rounds):
        for title in turned(list(who), number):
            try:
                seen[title].append(_contend(title, *who[title], seconds=seconds))
            except RuntimeError as error:
                if "NotImplementedError" not in str(error):
                    raise
                who.pop(title)
    rows: list[dict[str, Cell]] = [{"column": t, **_row(seen[t], seconds)} for t in who]
    notes = [f"{rounds} rounds of {seconds:g} s.", CONTENDERS_ARE, WAITING_BY_HAND]
    title = f"Hand-over between {CONTENDERS} contenders, sections of 1 ms: every store"
    return Table("stores-handover", title, rows, "median, ms", notes)


def _contend(title: str, threads: int, crew: Sequence[Contender], *, seconds: float) -> list[Turn]:
    name, until = f"handover:{os.getpid()}", time.monotonic() + seconds
    for contender in crew:
        contender.tell("turns", title, name, threads, until)
    answers, errors = [], []
    for contender in crew:  # All of them: an answer that is not read would be the next one's.
        try:
            answers.append(contender.answer())
        except RuntimeError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return sorted((turn for mine in answers for turn in mine), key=lambda turn: turn.held)


def _row(rounds: Sequence[Sequence[Turn]], seconds: float) -> Mapping[str, Cell]:
    every = sorted(gap for turns in rounds for gap in gaps(turns))
    turns = [turn for each in rounds for turn in each]
    return {
        "hand-overs": len(every),
        "a second": len(turns) / (seconds * len(rounds)),
        "median, ms": Spread.of(every) if every else None,
        "p99, ms": every[int(len(every) * 0.99)] if every else None,
        "worst, ms": every[-1] if every else None,
        "longest wait, ms": max(((t.held - t.asked) * 1000 for t in turns), default=None),
        "out of order": sum(map(jumps, rounds)),
    }
