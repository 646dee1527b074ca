"""The admin's list, the doctor and ``locks list``: few locks beside very many, in one run."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.messages.storage.cookie import CookieStorage
from django.core.management.base import BaseCommand
from django.test import RequestFactory
from django.test.utils import override_settings

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.cli.select import streamed
from django_tasklock.cli.streaming import pieces_of
from django_tasklock.models import Lock
from django_tasklock.operators import kept_search
from django_tasklock.operators.gone_owners import gone_owners

from ..bench import Bench
from ..rounds import paired
from ..tables import Cell, Table

__all__ = ["run"]

Work = Callable[[], object]

TASKS = 10
"""different tasks of the locks"""
RARE_TASK = "reports.rare"
NO_SUCH_START = 1
"""of a process: it has ended"""
LIST_OPTIONS: dict[str, Any] = {
    "prefix": "", "limit": None, "sort": "ttl", "scan": False, "task": None, "owner": None,
    "expiring": None, "format": "table", "no_color": True,
}  # fmt: skip
PAGES = {
    "first page": {},
    "last page but one": {"p": "-2"},
    "by TTL, the last first": {"o": "-2"},
    "by name": {"o": "1"},
    "by age, the youngest first": {"o": "3"},
    "by waiters": {"o": "-6"},
    "beginning of a name, of one lock": {"q": "rare:*"},
    "beginning of a name, of most": {"q": "video:*"},
    "part of a name, of one lock": {"q": "e:name"},
    "part of a name, of most": {"q": "video"},
    "part of a task, of one lock": {"q": "ports.ra"},
    "task, of one lock": {"task": RARE_TASK},
    "task, of a tenth": {"task": "videos.run3"},
    "host, of none": {"host": "nowhere"},
    "expires within a minute": {"state": "soon"},
    "owner gone, of one lock": {"state": "gone"},
    "no TTL, of none": {"state": "endless"},
}


SEARCHED = [
    name
    for name, query in PAGES.items()
    if query.keys() & {"q", "task", "host", "state"} and query.get("state") != "endless"
] + ["by name", "by age, the youngest first", "by waiters"]
"""those that a large store keeps for some seconds"""
KEPT_SECONDS = 3600.0


def run(bench: Bench) -> list[Table]:
    few, many = bench.pick((30, 300), (1_000, 100_000))
    for size in (few, many):
        _fill(size, gone=False)
        _fill(size, gone=True)
    pages: dict[str, Callable[[int], Work]] = {
        name: partial(_page, dict(query)) for name, query in PAGES.items()
    }
    others: dict[str, Callable[[int], Work]] = {
        "locks list, the first lines": lambda _: lambda: next(_lines()),
        "locks list, all": lambda _: lambda: sum(map(len, _lines())),
        "doctor: owners, all alive but one": lambda _: lambda: list(gone_owners(locks.store)),
    }
    rows = _rows(bench, pages, few, many, bench.pick(1, 3))
    rows += _rows(bench, others, few, many, 1)
    gone: dict[str, Callable[[int], Work]] = {
        "page, owner gone, of all": partial(_page, {"state": "gone"}),
        "doctor: owners, all gone": lambda _: lambda: list(gone_owners(locks.store)),
    }
    rows += _rows(bench, gone, few, many, 1, gone=True)
    # Kept: what was searched before, by somebody else or for the page before.
    again = _rows(bench, {name: pages[name] for name in SEARCHED}, few, many, 3, kept=True)
    title = f"The admin's list, `locks list` and the doctor: {many:,} locks beside {few:,}"
    note = (
        "A page is rendered in full, 100 rows at most. The longest call is that of one script, by "
        "the server's own clock: for so long other clients of Redis wait. The processor time is "
        "that of the site's process and of the server's together."
    )
    kept = (
        "What a long search has found is kept for some seconds: so the next page, each update of "
        f"the list and every other browser that asks the same cost this, beside {few:,} locks, "
        "where nothing is kept."
    )
    return [
        Table("pages", title, rows, notes=[note]),
        Table("pages-kept", f"The same searches once more: {many:,} locks", again, notes=[kept]),
    ]


def _rows(
    bench: Bench,
    works: dict[str, Callable[[int], Work]],
    few: int,
    many: int,
    rounds: int,
    *,
    gone: bool = False,
    kept: bool = False,
) -> list[dict[str, Cell]]:
    counted: dict[str, list[tuple[int, float]]] = {}
    for name, work in works.items():
        for size in (few, many):
            with _store(size, gone=gone), _keeping(kept):
                if size == few or kept:
                    work(size)()  # scripts are loaded, connections made, or the search is kept
                counted.setdefault(name, []).append(_counted(bench, work(size)))
    used: dict[tuple[str, int], list[float]] = {}

    def seconds(name: str, size: int) -> float:
        with _store(size, gone=gone), _keeping(kept):
            do = works[name](size)
            before, start = _processor_seconds(bench), time.perf_counter()
            do()
            took = time.perf_counter() - start
            used.setdefault((name, size), []).append(_processor_seconds(bench) - before)
            return took

    columns = {name: (partial(seconds, name, few), partial(seconds, name, many)) for name in works}
    measured = paired(columns, rounds)
    return [
        {
            "what": name,
            f"ms, {many:,} locks": m.seconds.times(1000),
            f"over {few:,}": m.ratio,
            "processor time, ms": median(used[name, many]) * 1000,
            f"that over {few:,}": median(used[name, many]) / median(used[name, few]),
            "round trips": counted[name][1][0],
            f"with {few:,}": counted[name][0][0],
            "longest call, ms": counted[name][1][1],
        }
        for name, m in measured.items()
    ]


def _processor_seconds(bench: Bench) -> float:
    """What this process and the server have used until now."""
    info = bench.redis.info("cpu")
    return float(time.process_time() + info["used_cpu_user"] + info["used_cpu_sys"])


@contextmanager
def _keeping(kept: bool) -> Iterator[None]:
    """Have long searches kept for the whole run, or never."""
    own = "KEPT_AFTER_SECONDS", "SHORTEST_KEPT_SECONDS", "LONGEST_KEPT_SECONDS"
    before = {name: getattr(kept_search, name) for name in own}
    kept_search.KEPT_AFTER_SECONDS = 0.0 if kept else math.inf
    kept_search.SHORTEST_KEPT_SECONDS = kept_search.LONGEST_KEPT_SECONDS = KEPT_SECONDS
    try:
        yield
    finally:
        vars(kept_search).update(before)


def _counted(bench: Bench, work: Work) -> tuple[int, float]:
    """Calls that the server got, and what the longest script took there, in milliseconds."""
    client = bench.redis
    client.config_set("slowlog-max-len", 100_000)
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    work()
    client.config_set("slowlog-log-slower-than", -1)
    calls = [entry for entry in client.slowlog_get(100_000) if entry["command"].startswith(b"EVAL")]
    return len(calls), max((entry["duration"] for entry in calls), default=0) / 1000


def _page(query: dict[str, str], size: int) -> Work:
    """Renders a page of the list."""
    asked = dict(query)
    if asked.get("p") == "-2":
        asked["p"] = str(max(1, size // 100 - 1))
    request = RequestFactory().get("/admin/django_tasklock/lock/", asked)
    request.user = User(username="operator", is_staff=True, is_superuser=True, is_active=True)
    request._messages = CookieStorage(request)  # type: ignore[attr-defined]
    model_admin: Any = admin.site.get_model_admin(Lock)

    def render() -> object:
        response = model_admin.changelist_view(request)
        assert response.status_code == 200, response
        return response.render().content

    return render


def _lines() -> Iterator[str]:
    command: Any = BaseCommand(stdout=io.StringIO())
    return pieces_of(streamed(locks, LIST_OPTIONS), command, LIST_OPTIONS)


@contextmanager
def _store(size: int, *, gone: bool) -> Iterator[None]:
    """Have the store "default" be the one with so many locks."""
    prefix = f"{'gone' if gone else 'alive'}{size}"
    with override_settings(TASKLOCK={"default": {"KEY_PREFIX": prefix}}):
        locks.count()
        yield


def _fill(size: int, *, gone: bool) -> None:
    ended = {"start": NO_SUCH_START}
    with _store(size, gone=gone):
        store = locks.store
        for number in range(size - 3):
            owner = owner_record(f"videos.run{number % TASKS}", f"6f3c2b1a-{number:012}")
            name = f"video:{number}"
            store.acquire(name, new_token(), 7200 + number / 50, owner | (ended if gone else {}))
        rare = {
            "rare:name": owner_record("videos.run1", "id"),
            "of-a-task": owner_record(RARE_TASK, "id"),
            "orphan": owner_record("videos.run2", "id") | ended,
        }
        for name, owner in rare.items():
            store.acquire(name, new_token(), 80_000, owner)
        assert locks.count() == size
