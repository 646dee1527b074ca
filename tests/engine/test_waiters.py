"""Who waits for a lock: asked of the store, shown by the command and on the admin's page."""

from __future__ import annotations

import io
import json
import re
import time
from datetime import datetime

import pytest
from django.core.management import call_command
from django.test import Client

from django_tasklock import locks
from tests.admin.conftest import id_of, url_of, words_of
from tests.agent import Agent
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import until


def said(*arguments: str) -> str:
    """What the command ``locks`` prints."""
    printed = io.StringIO()
    call_command("locks", *arguments, stdout=printed)
    return printed.getvalue()


@pytest.mark.django_db
def test_waiters_are_told_by_the_service_the_command_the_page(
    on_redis: None, admin_client: Client
) -> None:
    lease = taken("video:1")
    assert locks.waiters("video:1") == []
    with Agent() as first, Agent() as second:
        # Given two processes in the wait queue, of which the first is killed
        for position, agent in enumerate((first, second), 1):
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
        first.kill()
        # I expect the service to tell who they are, and who is gone
        found = locks.waiters("video:1")
        assert [owner.pid for owner in found] == [first.pid, second.pid]
        assert [owner.alive() for owner in found] == [False, True]
        assert locks.store.waiters("video:1", 1) == found[:1]
        # And the command, and the page
        sheet, table = said("show", "video:1").split("\n\n")
        assert re.search(r"^waiters: +2$", sheet, re.M)
        assert [row.split()[3] for row in table.splitlines()[2:]] == ["gone", "alive"]
        shown = json.loads(said("show", "video:1", "--format", "json"))
        assert shown["waiting"] == [owner.as_dict() for owner in found]
        (row,) = json.loads(said("list", "--format", "json"))
        since = datetime.fromisoformat(shown["waiting"][0]["waiting_since"])
        assert 0 <= row["longest_wait"] <= time.time() - since.timestamp()
        words = words_of(admin_client.get(url_of("change", id_of(holder("video:1")))))
        one, two = (rf"\S+:{agent.pid}" for agent in (first, second))
        assert re.search(rf" waits .*1 {one} .*gone.* \S+s 2 {two} ", words), words
        # And the one who lives to get the lock
        lease.release()
        assert second.answer()["token"] == holder("video:1").token
        assert locks.waiters("video:1") == []


def test_of_a_lock_with_slots_the_command_shows_the_permits_and_who_waits(on_redis: None) -> None:
    taken("pool#7")  # A plain lock.
    first, _second = [taken("pool", slots=2) for _ in range(2)]
    waits = Meanwhile(lambda: taken("pool", slots=2, wait=None))
    until(lambda: locks.waiters("pool"))
    assert "pool itself is not locked" in said("show", "pool")
    shown = json.loads(said("show", "pool", "--format", "json"))
    assert [row["slot"] for row in shown["permits"]] == [1, 2]
    assert len(shown["waiting"]) == 1
    first.release()
    assert waits.result().slot == 1
