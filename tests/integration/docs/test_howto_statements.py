"""What the how-tos and the page Sizing say of verbs, calls and log lines is so."""

from __future__ import annotations

import inspect
import logging
import re

import pytest

from django_tasklock import Lease, LockInfo, LockService, locks
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.conf import StoreSettings
from django_tasklock.operators.logs import log_run_beside
from django_tasklock.stores.any_of import AnyOf
from django_tasklock.stores.base import OneOf
from django_tasklock.testing import MemoryStore
from tests.conftest import UseRedis
from tests.pages import DOCS, blocks, code, prose, table
from tests.servers import RedisServer
from tests.steps import Traffic, taken


def test_every_verb_that_is_awaited_is_named() -> None:
    shown = {name.removeprefix("lease.") for name in code(prose(DOCS / "howto/async.md"))}
    awaited = {
        name
        for one in (LockService, Lease)
        for name, _ in inspect.getmembers(one, inspect.iscoroutinefunction)
    }
    assert awaited - shown == set()


def test_what_a_clear_costs(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    use_redis(own_redis_server.url)
    costs = {row[0]: row[1] for row in table(DOCS / "operations/sizing.md", "Round trips", "Work")}
    traffic, found = Traffic(own_redis_server), []
    taken("video:0")
    assert locks.clear("video:0")  # The server has the scripts from now on.
    for with_token in (False, True):
        lease = taken("video:1")
        traffic.restart()
        assert locks.clear("video:1", lease.token if with_token else None)
        found.append(str(traffic.scripts()))
    assert re.findall(r"\d+", costs["clear"]) == found


def test_what_a_permit_costs_on_a_store_without_its_own_way() -> None:
    calls = []

    class Counted(MemoryStore):
        def get(self, name: str) -> LockInfo | None:
            calls.append("get")
            return super().get(name)

        def acquire(self, *args: object) -> object:  # type: ignore[override]
            calls.append("acquire")
            return super().acquire(*args)  # type: ignore[arg-type]

    store = Counted(StoreSettings("default"))
    names = ["export:7#1", "export:7#2"]
    for held in (0, 1):
        calls.clear()
        answer = AnyOf.acquire_any(store, names, "gate", new_token(), 60, owner_record())
        assert isinstance(answer, OneOf)
        assert calls == ["get", *["acquire"] * (held + 1)]
    assert "a permit is taken in two calls, and one more for each permit that is found held" in (
        DOCS / "howto/slots.md"
    ).read_text("utf-8")


def test_the_line_of_a_run_beside_the_holder(caplog: pytest.LogCaptureFixture) -> None:
    found = blocks(DOCS / "howto/retries.md", "text", "Watch before you enforce")
    owner = Owner(host="web1", pid=812, task="accounts.tasks.book", task_id="0f0d…")
    holder = LockInfo("account:7", 60, None, new_token(), owner, "default", "")
    with caplog.at_level(logging.WARNING, "django_tasklock"):
        log_run_beside("account:7", "default", holder, "accounts.tasks.book", "7c1e…")
    (record,) = caplog.records
    assert f"{record.levelname} {record.message}\n" == found[0].text
