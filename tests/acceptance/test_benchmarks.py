"""The benchmarks at their smallest: what they count and prove, never what they time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.beside.__main__ import WORKS
from benchmarks.cluster_spread import even_tags, load, node_of, shard_of, slot_of, tags
from benchmarks.tables import Table, with_section

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
OURS = "django-tasklock"


def bench(tmp_path: Path, *workloads: str) -> dict[str, list[dict[str, Any]]]:
    """Run some workloads; return the rows of each of their tables."""
    path = tmp_path / "bench.json"
    chosen = [word for name in workloads for word in ("--workload", name)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--json", str(path), *chosen],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return {table["slug"]: table["rows"] for table in json.loads(path.read_text())["tables"]}


def row(rows: list[dict[str, Any]], begin: str) -> dict[str, Any]:
    """The one row whose first cell begins so."""
    found = [row for row in rows if str(next(iter(row.values()))).startswith(begin)]
    assert len(found) == 1, found
    return found[0]


def test_each_verb_is_one_round_trip(tmp_path: Path) -> None:
    # When Redis counts what the verbs ask of it, then I expect one round trip for each,
    # and two for a list.
    tables = bench(tmp_path, "verbs")
    assert row(tables["pairs"], f"{OURS}: acquire + release")["round trips"] == 2
    assert row(tables["pairs"], "floor")["commands"] == 4
    for verb in ("acquire, refused", "extend", "get", "count", "release, handed over"):
        assert row(tables["verbs"], verb)["round trips"] == 1, verb
    assert row(tables["verbs"], "list")["round trips"] == 2, "the index, and the records"
    assert row(tables["verbs"], "wait: ask")["round trips"] <= 2
    # A permit of several, and a lock on a cluster, are no more than a lock on one server.
    one = row(tables["kinds"], "one lock")
    for kind in ("slots=3", "cluster: one lock"):
        assert row(tables["kinds"], kind)["round trips"] == one["round trips"] == 2, kind
    # But for what is done now and then: the index is trimmed, the fences are made a hash table.
    same = [
        {name: round(float(count or 1)) for name, count in
         re.findall(r"([a-z]+) ?([0-9.]*)", row(tables["kinds"], kind)["which"])
         if name != "zrangebyscore"}
        for kind in ("one lock", "cluster: one lock")
    ]  # fmt: skip
    assert same[0] == same[1]


def test_columns_that_lock_are_compared(tmp_path: Path) -> None:
    # Every column has proven that it locks, or the run would have failed.
    tables = bench(tmp_path, "acquire_release", "memory", "parts", "server_parts")
    for slug in ("one", "threads", "processes"):
        names = {row["column"] for row in tables[f"acquire-release-{slug}"]}
        assert names >= {OURS, "redis-py Lock", "cache.add + delete", "django-redis lock"}
    assert {row["step"] for row in tables["parts"]} >= {"a token is drawn", "all of these"}
    assert row(tables["server-parts"], OURS)["server's CPU, us"]["median"] > 0
    for held in tables["memory"]:
        if held["leases"].startswith(
            "1,000"
        ):  # Of 100, one buffer of a client's is too large a part.
            assert held["in all"] <= 2048
        # The last fence: nothing is left of a lease.
        assert held["keys left"] <= 1


def test_nobody_asks_while_a_lock_is_held(tmp_path: Path) -> None:
    # Given waiters in several processes, when one holds, then I expect silence; and turns
    # that do not overlap, which the workload itself asserts.
    tables = bench(tmp_path, "handoff", "killed_holder")
    ours = row(tables["handoff-4"], OURS)
    assert ours["commands/s while held"] == 0
    assert ours["hand-offs"] > 0
    assert row(tables["handoff-4"], "redis-py Lock")["commands/s while held"] > 0
    assert (
        row(tables["killed-holder"], f"{OURS}, the same")["after the lease's end, ms"] is not None
    )


def test_processes_that_wait_once_are_served_in_their_turn(tmp_path: Path) -> None:
    (table,) = bench(tmp_path, "handoff_once").values()
    ours = row(table, OURS)
    assert ours["round trips a turn"] <= 3.5, "the release, and its share of the history"
    assert ours["commands a turn"] <= 15


def test_the_import_and_the_sender_are_measured(tmp_path: Path) -> None:
    tables = bench(tmp_path, "importing", "sending")
    assert row(tables["importing"], "import django_tasklock")["ms"]["median"] > 0
    assert row(tables["sending"], OURS + ", guarded")["us a message"]["median"] > 0


def test_one_thread_renews_all(tmp_path: Path) -> None:
    tables = bench(tmp_path, "renewal")
    for begin in (f"{OURS}, 50", f"{OURS}, 700"):
        ours = row(tables["renewal"], begin)
        assert ours["lost"] == 0
        assert ours["threads"] == 1


def test_tasks_that_wait_ask_nothing(tmp_path: Path) -> None:
    tables = bench(tmp_path, "event_loop")
    ours = row(tables["event-loop"], OURS)
    assert ours["commands/s while held"]["median"] == 0
    assert ours["threads more"]["median"] <= 8, "not one for each of the thirty that wait"
    assert row(tables["event-loop"], "redis-py")["commands/s while held"]["median"] > 0


def test_a_page_is_two_round_trips(tmp_path: Path) -> None:
    # However many locks there are: the page costs what it shows.
    tables = bench(tmp_path, "listing")
    for slug in ("listing-20", "listing-200"):
        assert _listed(tables[slug])["round trips"] <= 2


def test_pages_are_measured_beside_a_tenth_of_the_locks(tmp_path: Path) -> None:
    tables = bench(tmp_path, "pages")
    rows = tables["pages"]
    for begin in ("first page", "by TTL, the last first"):
        page = row(rows, begin)
        assert page["round trips"] == page["with 30"], begin
    # The store is asked by the hundred, never once for each owner
    assert row(rows, "doctor: owners, all gone")["round trips"] <= 6
    assert row(rows, "locks list, the first lines")["round trips"] == 2
    # What was searched once is not searched again
    for begin in ("by name", "host, of none"):
        assert "ms, 300 locks" in row(tables["pages-kept"], begin), begin


def _listed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["column"] == OURS)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_task_adds_two_round_trips_and_survives_its_child(tmp_path: Path) -> None:
    tables = bench(tmp_path, "celery_task", "fresh_workers", "recovery")
    assert row(tables["fresh-quiet"], f"{OURS}, guarded")["child ms a task"]["median"] > 0
    rows = tables["celery-task"]
    for begin in ("cache.add + delete", f"{OURS}, acks_late"):
        # A worker that looks into its queue in vain adds a part of one now and then.
        assert 1.5 <= row(rows, begin)["more than plain"] < 3.5, begin
    killed = row(tables["recovery"], OURS)
    assert killed["free, ms"] is not None
    assert killed["runs again, ms"] is not None
    assert killed["else the lock stays"] == ""


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="is no clone")
def test_this_version_is_compared_with_another() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.beside", "HEAD", "--pieces", "2"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    for work in (*WORKS, f"same version, {WORKS[0]}"):
        assert re.search(rf"│ {re.escape(work)} +│ +\d", done.stdout), done.stdout


def test_a_million_names_spread_evenly() -> None:
    # Slots are those of Redis: the check value of its hash, in its specification, is one.
    assert slot_of("123456789") == 0x31C3
    assert slot_of("{lock:7}:video:1") == slot_of("{lock:7} index") == slot_of("lock:7")
    assert slot_of("{}a") != slot_of("{}b")
    shards = Counter(shard_of(f"video:{n}", 256) for n in range(50_000))
    spread = load(shards, 256)
    assert spread.empty == 0
    assert spread.over < 1.5
    for tagged in (tags, even_tags):
        slots = [slot_of(tag) for tag in tagged(256)]
        assert len(set(tagged(256))) == 256
        assert {node_of(slot, 6) for slot in slots} == set(range(6))
    # One shard in each run of slots: no node has more than its share, rounded up.
    per_node = Counter(node_of(slot_of(tag), 6) for tag in even_tags(64))
    assert set(per_node.values()) <= {10, 11}


def test_every_store_is_compared_with_the_same_by_hand(tmp_path: Path) -> None:
    # Every column has proven that it locks, between two processes where it can.
    tables = bench(tmp_path, "stores")
    stores = ("MemoryStore", "CacheStore on LocMemCache", "RedisStore", "DatabaseStore on SQLite")
    pairs = {row["column"]: row for row in tables["stores-pairs"]}
    for store in stores:
        assert pairs[store]["us a pair"]["median"] > 0
    by_hand = "DatabaseStore on SQLite: its statements by hand"
    assert pairs["DatabaseStore on SQLite"]["over the same by hand"]["median"] > 0
    assert by_hand in pairs
    hand_overs = {row["column"]: row["hand-overs"] for row in tables["stores-handover"]}
    assert hand_overs.keys() >= {*stores, by_hand}
    assert hand_overs["MemoryStore"] > 0
    assert hand_overs["RedisStore"] > 0


def test_a_quorum_and_one_server_are_as_far_away(tmp_path: Path) -> None:
    # Given a delay of so many ms each way, a pair takes four of them at least, in each column.
    (rows,) = bench(tmp_path, "quorum").values()
    assert {row["one way, ms"] for row in rows} == {0, 0.5, 2}
    for row in rows:
        assert row["ms a pair"]["low"] >= 4 * row["one way, ms"], row["column"]


def test_memory_is_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    rows = bench(tmp_path, "memory")["resident"]
    none, some = row(rows, f"{OURS}, 0"), row(rows, f"{OURS}, 50")
    assert some["threads"] == none["threads"] + 1, "the renewal thread"


def test_a_run_of_some_workloads_is_a_section_of_the_page() -> None:
    about = {
        "when": "2026-01-01T00:00:00", "processors": 2, "load": 0.5, "machine": "Linux",
        "python": "3.10", "redis": "7.0", "packages": {},
    }  # fmt: skip

    def page_with(page: str, number: int) -> str:
        table = Table("slug", "Pairs", [{"column": "ours", "us": number}])
        return with_section(page, [table], about, ["stores", "handoff"])

    page = "# Measurements\n\n## Of the whole run\n\nis kept\n"
    once = page_with(page, 1)
    assert once.startswith(page)
    assert "ARGS='--workload stores --workload handoff'" in once
    assert "### Pairs" in once
    # Another run of the same takes its place, wherever that is.
    later = "\n## Of a later day\n\nis kept too\n"
    again = page_with(once + later, 2)
    assert again == page_with(page, 2) + later
