"""``manage.py locks history --top``."""

from __future__ import annotations

import io
import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from django.core.management import CommandError, call_command

from django_tasklock import Event, locks
from django_tasklock._values.owner import Owner
from django_tasklock.cli.most_contended import CONTENTION_COLUMNS
from tests.conftest import UseCaches
from tests.integration.cli.test_command import on_redis, run

__all__ = ["on_redis"]
pytestmark = pytest.mark.django_db
HOLDER = Owner(host="worker-1", pid=8, task="videos.process", task_id="id-1")


def refused(name: str, times: int = 1, holder: Owner = HOLDER, minutes_ago: int = 90) -> None:
    at = datetime.now(timezone.utc) - timedelta(minutes=minutes_ago)
    event = Event("refused", name, "default", at, Owner(), holder=holder, seconds=61.0)
    locks.store.record([event] * times)


def test_the_most_wanted_come_first_and_no_more_than_asked_for(on_redis: None) -> None:
    refused("video:1", 2, minutes_ago=0)
    refused("video:2", 3, minutes_ago=0)
    refused("video:3", minutes_ago=0)
    headers, *rows = [
        re.split(r"  +", line.strip())
        for line in run("history", "--top", "--limit", "2").splitlines()
    ]
    assert headers == list(CONTENTION_COLUMNS)
    assert rows == [
        ["video:2", "3", "0", "1m01s", "0", "0", "worker-1:8", "videos.process[id-1]"],
        ["video:1", "2", "0", "1m01s", "0", "0", "worker-1:8", "videos.process[id-1]"],
    ]
    # And it says, not among the rows, from when on it knows
    for form in ("table", "json"):
        errors = io.StringIO()
        call_command(
            "locks", "history", "--top", "--format", form, stdout=io.StringIO(), stderr=errors
        )
        assert "The oldest of at most 5000 events" in errors.getvalue(), form


def test_as_json(on_redis: None) -> None:
    refused("video:1", 2, minutes_ago=0)
    (row,) = json.loads(run("history", "--top", "--format", "json"))
    assert (row["name"], row["store"], row["refused"], row["waited"]) == (
        "video:1",
        "default",
        2,
        0,
    )
    assert (row["longest_wait"], row["last_holder"]["task"]) == (61.0, "videos.process")


def test_nobody_was_refused(on_redis: None) -> None:
    assert "Nobody was refused" in run("history", "--top")
    assert json.loads(run("history", "--top", "--format", "json")) == []


@pytest.mark.parametrize("more", [("video:1",), ("--follow",)])
def test_it_is_about_all_locks_and_ends(on_redis: None, more: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="takes no NAME, nor --follow"):
        run("history", "--top", *more)


def test_a_store_without_a_history(on_locmem: None) -> None:
    with pytest.raises(CommandError, match="cannot keep a history of its locks"):
        run("history", "--top")


def test_what_a_stranger_wrote_moves_no_cursor(use_caches: UseCaches) -> None:
    use_caches({}, {"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}})
    refused("a\x1b[2J", holder=Owner(host="\x1b[1A", task="x\ny"), minutes_ago=0)
    said = run("history", "--top")
    assert "\x1b" not in said
    assert len(said.splitlines()) == 2
