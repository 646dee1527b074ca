"""``manage.py locks history``."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.utils import timezone as timezones

from django_tasklock import Event
from django_tasklock.stores import stores
from tests.command import run, run_json
from tests.conftest import UseCaches
from tests.inside import Owner
from tests.steps import taken

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("on_redis")]

OWNER = Owner(host="web-1", pid=7, task="videos.process", task_id="id-1")


def happened(
    kind: Any = "refused",
    name: str = "video:1",
    owner: Owner = OWNER,
    at: datetime | None = None,
    **fields: Any,
) -> None:
    at = at or datetime.now(timezone.utc)
    stores["default"].record([Event(kind, name, "default", at, owner, **fields)])


def rows(said: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in said.splitlines()]


def test_the_newest_come_first() -> None:
    taken("video:1").release()
    assert run("history") == "No events.\n"
    happened(holder=Owner(host="web-2", pid=8), seconds=61.5)
    happened("cleared", "video:2", by="alice")
    happened("lost", reason="its ttl ran out")
    happened("held", "video:3", by="bob", seconds=7200.0, reason="migration")
    headers, *found = rows(run("history"))
    assert headers == ["AGE", "AT", "WHAT", "NAME", "TASK", "WHO", "BY", "SECONDS", "REASON"]
    task = "videos.process[id-1]"
    assert [row[2:] for row in found] == [
        ["held", "video:3", task, "web-1:7", "bob", "2h00m", "migration"],
        ["lost", "video:1", task, "web-1:7", "-", "-", "its ttl ran out"],
        ["cleared", "video:2", task, "web-1:7", "alice", "-", "-"],
        ["refused", "video:1", task, "web-1:7", "web-2:8", "1m01s", "-"],
    ]
    assert [row[2] for row in rows(run("history", "video:1"))[1:]] == ["lost", "refused"]
    assert [row[2] for row in rows(run("history", "--limit", "1"))[1:]] == ["held"]


def test_beside_its_age_an_event_has_the_time_in_the_sites_time_zone() -> None:
    at = datetime(2026, 7, 1, 23, 30, 5, tzinfo=timezone.utc)
    stores["default"].record([Event("lost", "video:1", "default", at, OWNER)])
    for zone, words in (("UTC", "23:30:05"), ("Asia/Shanghai", "07:30:05")):
        with timezones.override(zone):
            assert rows(run("history"))[1][1] == words


def test_equal_events_are_one_line_with_a_count_and_its_time_and_json_has_each() -> None:
    # Given a flood of duplicates of one kind, an operator's deeds before it, and other events
    now = datetime.now(timezone.utc)

    def skips(name: str, **more: Any) -> list[Event]:
        fields: dict[str, Any] = {"holder": Owner(host="web-2", pid=8), "reason": "coalesced"}
        return [
            Event(
                "skipped", name, "default", now - timedelta(seconds=90 - second),
                replace(OWNER, task_id=f"id-{second}"), **fields | more,
            )
            for second in range(90)
        ]  # fmt: skip

    before = now - timedelta(seconds=0.5)
    for deed in ("alice", "bob"):
        happened("cleared", "video:1", at=before, by=deed)
        happened("cleared", "video:1", at=before, by=deed)
    stores["default"].record([*skips("video:1"), *skips("video:2"), *skips("video:1", reason="x")])
    more: dict[str, Any] = {"count": 1000, "since": now, "seconds": 2.0}
    happened("skipped", "video:1", at=now, reason="coalesced", **more)

    # I expect a line for each of the deeds, and for each kind of the others
    said = [[*row[2:6], row[-1]] for row in rows(run("history"))]
    assert said == [
        ["WHAT", "COUNT", "WITHIN", "NAME", "REASON"],
        ["skipped", "1,090", "1m30s", "video:1", "coalesced"],
        *[["cleared", "-", "-", "video:1", "-"]] * 4,
        ["skipped", "90", "1m29s", "video:1", "x"],
        ["skipped", "90", "1m29s", "video:2", "coalesced"],
    ]
    assert [row[3:6] for row in rows(run("history", "video:2"))[1:]] == [["90", "1m29s", "video:2"]]
    assert len(rows(run("history", "--limit", "2"))[1:]) == 2

    # And each to be found by its task id, and in JSON
    assert len(run_json("history", "--limit", "1000")) == 4 + 3 * 90 + 1
    assert [row[4] for row in rows(run("history", "--task-id", "id-7"))[1:]] == [
        "videos.process[id-7]"
    ] * 3


def test_a_count_reaches_back_to_the_first_event_that_it_has() -> None:
    """Also where that one was many already."""
    now = datetime.now(timezone.utc)
    ago = {seconds: now - timedelta(seconds=seconds) for seconds in (60, 120)}
    many: dict[str, Any] = {"count": 5, "since": ago[120], "seconds": 3.0}
    stores["default"].record([Event("refused", "video:1", "default", ago[60], OWNER, **many)])
    stores["default"].record([Event("refused", "video:1", "default", now, OWNER, seconds=2.0)])
    heads, found = rows(run("history"))
    said = dict(zip(heads, found, strict=True))
    assert (said["COUNT"], said["WITHIN"], said["SECONDS"]) == ("6", "2m00s", "3s")


def test_why_a_task_was_skipped() -> None:
    other = Owner(host="web-2", pid=8, task="videos.process", task_id="id-2")
    alice = Owner(held_by="alice", reason="a migration")
    happened("skipped", holder=alice, reason="held_by_operator")
    happened("skipped", holder=other, reason="already_processing")
    happened("skipped", holder=Owner(task="videos.process", task_id="id-3"), reason="debounced")
    happened("lost", owner=other, reason="late")
    found = rows(run("history", "--task-id", "id-1"))[1:]
    assert [[row[2], row[4], row[6], row[7]] for row in found] == [
        ["skipped", "videos.process[id-1]", "videos.process[id-3]", "debounced"],
        ["skipped", "videos.process[id-1]", "web-2:8 videos.process[id-2]", "already_processing"],
        ["skipped", "videos.process[id-1]", "operator alice", "held_by_operator: a migration"],
    ]
    (row,) = run_json("history", "--task-id", "id-2")
    assert (row["kind"], row["name"], row["store"]) == ("lost", "video:1", "default")
    assert (row["owner"]["pid"], row["holder"], row["reason"]) == (8, None, "late")
    assert datetime.fromisoformat(row["at"]) - datetime.now(timezone.utc) < timedelta(minutes=1)


def test_what_a_stranger_wrote_moves_no_cursor(use_caches: UseCaches) -> None:
    """A store that checks nothing."""
    use_caches({}, {"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}})
    happened(name="a\x1b[2J", by="\x1b[1A", reason="x\ny")
    said = run("history")
    assert "\x1b" not in said
    assert "a\\x1b[2J" in said
    assert len(said.splitlines()) == 2
