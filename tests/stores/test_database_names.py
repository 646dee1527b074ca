"""Names, prefixes and times in `DatabaseStore`: what databases compare in ways of their own."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from django.db import connections

from django_tasklock import locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Note, Refusal
from django_tasklock.stores.database import DatabaseStore
from tests.conftest import UseCaches, database_alias
from tests.store_cases import database_store as settings_of_store
from tests.store_cases import make_lease_table

TTL = 30.0


def granted(store: DatabaseStore, name: str, token: str, ttl: float = TTL) -> Grant:
    answer = store.acquire([name], token, ttl, owner_record())
    assert isinstance(answer, Grant), answer
    return answer


def test_names_that_a_database_may_take_for_one_another(database_store: DatabaseStore) -> None:
    alike = [
        "video", "Video", "VIDEO", "vidéo", "vide\u0301o", "straße", "strasse", "STRASSE",
        "ﬁle", "file", "Ωmega", "ωmega", "ｖideo", "ı", "i", "İ", "ß", "ẞ",
    ]  # fmt: skip
    tokens = {name: new_token() for name in alike}
    for name, token in tokens.items():
        granted(database_store, name, token)
    assert {info.name: info.token for info in database_store.walk()} == tokens
    found = database_store.find_many([*alike, "VIDEo"])
    assert [info and info.token for info in found] == [*tokens.values(), None]
    for name, token in tokens.items():
        assert database_store.release(name, token)
    assert database_store.count() == 0


def test_tokens_are_compared_by_case(database_store: DatabaseStore) -> None:
    granted(database_store, "video:1", "a" * 22)
    assert database_store.release("video:1", "A" * 22) is False
    assert database_store.extend("video:1", "A" * 22, TTL) is False
    assert isinstance(database_store.acquire(["video:1"], "A" * 22, TTL, owner_record()), Refusal)
    assert database_store.clear("video:1", "A" * 22) is False
    assert database_store.clear("video:1", "a" * 22) is True


def test_the_longest_names_in_the_widest_characters(database_store: DatabaseStore) -> None:
    for end in ("🔒", "'", '"', "\\", "%", "_", "`", "\U0010ffff"):
        name, token = ("🔑" * 199 + end), new_token()
        if not name.isprintable():
            continue
        granted(database_store, name, token)
        assert [info.name for info in database_store.list(name)] == [name]
        assert database_store.release(name, token)


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("a", {"a", "a%", "a%b", "aa"}),
        ("a%", {"a%", "a%b"}),
        ("_", set()),
        ("A", set()),
        ("\ud7ff", set()),
        ("\ud800", set()),
        ("\x00", set()),
        ("a b", set()),
        ("\U0010ffff", set()),
        ("🔒", {"🔒1"}),
        ("'; DROP TABLE django_tasklock_lease; --", set()),
    ],
)
def test_prefixes(database_store: DatabaseStore, prefix: str, found: set[str]) -> None:
    for name in ("a", "a%", "a%b", "aa", "b", "🔒1"):
        granted(database_store, name, new_token())
    assert {info.name for info in database_store.list(prefix)} == found
    assert database_store.count(prefix) == len(found)


def test_two_prefixes_in_one_table(database_store: DatabaseStore, use_caches: UseCaches) -> None:
    one = settings_of_store(database_store.database)
    use_caches({}, {"default": one, "other": one | {"KEY_PREFIX": "other"}})
    token = new_token()
    for alias in ("default", "other"):
        store = stores[alias]
        assert isinstance(store, DatabaseStore)
        granted(store, "video:1", token)
        store.set_note(Note("a note", alias, TTL))
    assert [info.key for info in locks.list()] == ["lock:video:1"]
    (there,) = locks.using("other").list("vid")
    assert (there.name, there.key, there.store) == ("video:1", "other:video:1", "other")
    assert locks.using("other").clear("video:1")
    assert locks.count() == 1
    assert stores["default"].get_note("a note") == "default"


def test_a_list_goes_through_all_of_many(database_store: DatabaseStore) -> None:
    """In pages: a lease that is extended meanwhile does not come twice."""
    names = [f"video:{number}" for number in range(603)]
    tokens = {name: new_token() for name in names}
    for part in (names[:300], names[300:]):
        wanted = {name: tokens[name] for name in part}
        assert database_store.acquire_all(wanted, TTL, owner_record())
    found: list[str] = []
    for entry in database_store.list("video:"):
        if not found:
            assert database_store.extend(entry.name, tokens[entry.name], 2 * TTL)
        found.append(entry.name)
    assert sorted(found) == sorted(names)
    assert database_store.count("video:") == len(names)
    assert [info and info.name for info in database_store.find_many(names)] == names


@pytest.mark.parametrize(
    ("fixture", "options"),
    [
        ("postgres_alias", {"options": "-c TimeZone=Asia/Kolkata"}),
        pytest.param(
            "mariadb_alias",
            {"init_command": "SET time_zone = '+05:30'"},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_session_in_another_time_zone(
    request: pytest.FixtureRequest,
    use_caches: UseCaches,
    fixture: str,
    options: dict[str, str],
) -> None:
    alias = request.getfixturevalue(fixture)
    make_lease_table(alias)
    there: Any = connections.settings[alias] | {"TIME_ZONE": "Asia/Kolkata"}
    there["OPTIONS"] = there["OPTIONS"] | options
    with database_alias("there", there):
        use_caches({}, {"default": settings_of_store(alias), "there": settings_of_store("there")})
        assert locks.using("there").acquire("video:1", ttl=TTL) is not None
        assert locks.acquire("video:1") is None
        held = locks.get("video:1")
        assert held is not None
        assert 0 < (held.ttl or 0) <= TTL
        assert held.acquired_at is not None
        age = datetime.now(timezone.utc) - held.acquired_at
        assert abs(age.total_seconds()) < 600
        stores.forget()
