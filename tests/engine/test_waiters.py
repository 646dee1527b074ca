"""Who waits for a lock: asked of the store, shown by the command and on the admin's page."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime

import pytest
from django.test import Client

from django_tasklock import locks
from tests.admin.conftest import client_with, id_of, operator, url_of, words_of
from tests.agent import Agent
from tests.command import run
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import until

__all__ = ["client_with", "operator"]


@pytest.mark.django_db
def test_waiters_are_told_by_the_service_the_command_the_page(
    on_redis: None, operator: Client
) -> None:
    lease = taken("video:1")
    assert locks.waiters("video:1") == []
    with Agent() as first, Agent() as second:
        for position, agent in enumerate((first, second), 1):
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
        first.kill()
        found = locks.waiters("video:1")
        assert [owner.pid for owner in found] == [first.pid, second.pid]
        assert [owner.alive() for owner in found] == [False, True]
        assert locks.store.waiters("video:1", 1) == found[:1]
        sheet, table = run("show", "video:1").split("\n\n")
        assert re.search(r"^waiters: +2$", sheet, re.M)
        assert [row.split()[3] for row in table.splitlines()[2:]] == ["gone", "alive"]
        shown = json.loads(run("show", "video:1", "--format", "json"))
        assert shown["waiting"] == [owner.as_dict() for owner in found]
        (row,) = json.loads(run("list", "--format", "json"))
        since = datetime.fromisoformat(shown["waiting"][0]["waiting_since"])
        assert 0 <= row["longest_wait"] <= time.time() - since.timestamp()
        words = words_of(operator.get(url_of("change", id_of(holder("video:1")))))
        one, two = (rf"\S+:{agent.pid}" for agent in (first, second))
        assert re.search(rf" waits .*1 {one} .*gone.* \S+s 2 {two} ", words), words
        lease.release()
        assert second.answer()["token"] == holder("video:1").token
        assert locks.waiters("video:1") == []


def test_of_a_lock_with_slots_the_command_shows_the_permits_and_who_waits(on_redis: None) -> None:
    taken("pool#7")  # A plain lock.
    first, _second = [taken("pool", slots=2) for _ in range(2)]
    waits = Meanwhile(lambda: taken("pool", slots=2, wait=None))
    until(lambda: locks.waiters("pool"))
    assert "pool itself is not locked" in run("show", "pool")
    shown = json.loads(run("show", "pool", "--format", "json"))
    assert [row["slot"] for row in shown["permits"]] == [1, 2]
    assert len(shown["waiting"]) == 1
    first.release()
    assert waits.result().slot == 1
