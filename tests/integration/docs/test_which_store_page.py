"""The page about stores says of each what its class says, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.cache import CacheStore
from django_tasklock.stores.cluster import RedisClusterStore
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.memory import MemoryStore
from django_tasklock.stores.quorum import QuorumStore
from django_tasklock.stores.redis import RedisStore
from django_tasklock.stores.zookeeper import ZooKeeperStore
from tests.pages import DOCS, code, section, table

PAGE = DOCS / "explanation/which-store.md"
STORES: dict[str, type[BaseStore]] = {
    store.__name__: store
    for store in (
        RedisStore,
        RedisClusterStore,
        DatabaseStore,
        ZooKeeperStore,
        QuorumStore,
        CacheStore,
        MemoryStore,
    )
}
TESTS = re.findall(r"\[`(test_\w+)`\]\(([\w/.]+)\)", section(PAGE, "How this is known"))


def test_what_each_gives() -> None:
    rows = {code(row[0])[0]: row for row in table(PAGE, "What each gives", "Store")}
    assert list(rows) == list(STORES)
    for name, store in STORES.items():
        flags = (
            store.supports_fence,
            store.supports_waiting,
            store.supports_listing,
            store.atomic_release,
        )
        assert rows[name][1:5] == ["yes" if flag else "no" for flag in flags], name


@pytest.mark.parametrize(
    ("heading", "first"), [("What each survives", "Store"), ("How this is known", "Store")]
)
def test_no_store_is_left_out(heading: str, first: str) -> None:
    named = {name for row in table(PAGE, heading, first) for name in code(row[0])}
    assert named >= set(STORES)


@pytest.mark.parametrize(("name", "path"), TESTS)
def test_the_tests_are_there(name: str, path: str) -> None:
    text = Path(PAGE.parent / path).resolve().read_text("utf-8")
    assert re.search(rf"^ *def {name}\(", text, re.MULTILINE)
