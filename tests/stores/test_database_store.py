"""What `DatabaseStore` adds to the contract: fences, rows, batches and settings."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from django_tasklock import InvalidLockConfig, StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.models import LeaseRow
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant, Refusal
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.database.dialects import DIALECTS
from django_tasklock.stores.database.statements import RETENTION_SECONDS, TABLE
from tests.conftest import UseCaches, database_alias
from tests.store_cases import database_store as settings_of_store
from tests.waiting import until

TTL = 30.0
HOUR = 3_600_000_000
"""microseconds"""


def granted(store: DatabaseStore, name: str, token: str, ttl: float = TTL) -> Grant:
    answer = store.acquire(name, token, ttl, owner_record())
    assert isinstance(answer, Grant), answer
    return answer


def change(store: DatabaseStore, name: str, what: str) -> None:
    """Change a lock's row behind the store's back."""
    done = store.run(
        f"UPDATE {TABLE} SET {what} WHERE lock_key = %(key)s", {"key": store.key(name)}
    )
    assert done.count == 1


def rows(store: DatabaseStore) -> set[str]:
    """The names that the table has rows of."""
    return {store.name(key) for (key,) in store.run(f"SELECT lock_key FROM {TABLE}").rows}


class TestFences:
    def test_a_fence_grows_though_the_clock_was_set_back(
        self, database_store: DatabaseStore
    ) -> None:
        """The last lease was granted at a time that is still to come."""
        first = granted(database_store, "video:1", new_token())
        assert first.fence is not None
        ahead = first.fence + 20 * 60_000_000
        change(database_store, "video:1", f"fence = {ahead}")
        assert database_store.clear("video:1")
        token = new_token()
        assert granted(database_store, "video:1", token).fence == ahead + 1
        assert granted(database_store, "video:1", token).fence == ahead + 1, "the same lease"
        assert database_store.release("video:1", token)
        assert database_store.sweep() == 0
        assert granted(database_store, "video:1", token).fence == ahead + 2, "another lease"

    def test_a_fence_grows_after_its_row_was_swept(self, database_store: DatabaseStore) -> None:
        token = new_token()
        granted(database_store, "video:1", token)
        assert database_store.release("video:1", token)
        old = f"fence - {RETENTION_SECONDS * 1_000_000}"
        change(database_store, "video:1", f"fence = {old}")
        (before,) = database_store.run(f"SELECT fence FROM {TABLE}").rows[0]
        assert database_store.sweep() == 1
        fence = granted(database_store, "video:1", new_token()).fence
        assert fence is not None
        assert fence > before

    def test_a_fence_that_is_ahead_outlives_a_lease_that_ended_by_itself(
        self, database_store: DatabaseStore
    ) -> None:
        first = granted(database_store, "video:1", new_token(), 0.001)
        assert first.fence is not None
        until(lambda: database_store.get("video:1") is None)
        ahead, old = first.fence + HOUR, f"expires - {HOUR} - 60000000"
        change(database_store, "video:1", f"fence = {ahead}, expires = {old}")
        assert database_store.sweep() == 0
        assert granted(database_store, "video:1", new_token()).fence == ahead + 1


class TestRows:
    def test_the_statements_are_for_the_table_of_the_model(self) -> None:
        assert LeaseRow._meta.db_table == TABLE
        fields = [field.column for field in LeaseRow._meta.fields]
        for statements in DIALECTS.values():
            assert ", ".join(map(str, fields)) in statements.get

    def test_only_old_rows_are_swept(self, database_store: DatabaseStore) -> None:
        tokens = {
            name: new_token()
            for name in ("held", "old and held", "released", "old and released", "old and over")
        }
        for name, token in tokens.items():
            granted(database_store, name, token)
        # No lock is taken after the changes: now and then that sweeps.
        granted(database_store, "over", new_token(), 0.001)
        until(lambda: database_store.get("over") is None)
        for name in ("released", "old and released"):
            assert database_store.release(name, tokens[name])
        for name in ("old and held", "old and released", "old and over"):
            change(database_store, name, f"fence = fence - {HOUR}, acquired = acquired - {HOUR}")
        change(database_store, "old and over", f"expires = expires - {HOUR} - 60000000")
        assert database_store.sweep() == 2
        assert rows(database_store) == {"held", "old and held", "released", "over"}

    def test_taking_locks_sweeps(self, database_store: DatabaseStore) -> None:
        token = new_token()
        granted(database_store, "old", token)
        assert database_store.release("old", token)
        change(database_store, "old", f"fence = fence - {HOUR}")

        def swept() -> bool:
            granted(database_store, "video:1", token)
            return rows(database_store) == {"video:1"}

        until(swept, every=0)

    def test_a_released_lock_keeps_a_small_row_without_its_owner(
        self, database_store: DatabaseStore
    ) -> None:
        token = new_token()
        granted(database_store, "video:1", token)
        assert database_store.release("video:1", token)
        assert database_store.run(f"SELECT owner, expires FROM {TABLE}").rows == [("", 0)]

    @pytest.mark.parametrize("owner", ["", "no JSON", "[1]", '{"pid": "no number"}', '{"host": 5}'])
    def test_a_row_that_somebody_else_wrote_is_a_lock(
        self, database_store: DatabaseStore, owner: str
    ) -> None:
        granted(database_store, "video:1", new_token())
        change(database_store, "video:1", f"owner = '{owner}'")
        held = database_store.get("video:1")
        assert held is not None
        assert held.token is None
        assert held.digest is not None
        answer = database_store.acquire("video:1", new_token(), TTL, owner_record())
        assert isinstance(answer, Refusal)
        assert database_store.clear_foreign("video:1", "another digest") is False
        assert database_store.clear_foreign("video:1", held.digest) is True
        assert database_store.get("video:1") is None


class TestBatches:
    @pytest.mark.parametrize("ttls", [(TTL,), (TTL, 2 * TTL, 3 * TTL)])
    def test_a_batch_of_500_is_extended(
        self, database_store: DatabaseStore, ttls: tuple[float, ...]
    ) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        batch = []
        for number in range(500):
            token = new_token()
            granted(database_store, f"video:{number}", token, 10.0)
            batch.append(Extension(f"video:{number}", token, chance.choice(ttls)))
        assert database_store.extend_many(batch) == [True] * 500
        left = {info.name: info.ttl or 0.0 for info in database_store.list()}
        assert all(each.ttl - 10 < left[each.name] <= each.ttl for each in batch)

        lost = set(chance.sample(range(500), 40))
        for number in lost:
            assert database_store.clear(batch[number].name)
            if chance.random() < 0.5:
                granted(database_store, batch[number].name, new_token())
        assert database_store.extend_many(batch) == [number not in lost for number in range(500)]

    def test_two_leases_of_one_name_in_a_batch(self, database_store: DatabaseStore) -> None:
        """The lost one has not been noticed yet."""
        lost, token = new_token(), new_token()
        granted(database_store, "video:1", lost)
        assert database_store.clear("video:1")
        granted(database_store, "video:1", token)
        batch = [Extension("video:1", lost, 2 * TTL), Extension("video:1", token, TTL)]
        assert database_store.extend_many(batch) == [False, True]


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"DATABASE": "none"}, "none"),
            ({"DATABASE": 5}, "DATABASE"),
            ({"TIMEOUT": 0}, "TIMEOUT"),
            ({"TIMEOUT": float("inf")}, "TIMEOUT"),
            ({"TIMEOUT": "5"}, "TIMEOUT"),
            ({"MAX_CONNECTIONS": True}, "MAX_CONNECTIONS"),
            ({"MAX_CONNECTIONS": 0}, "MAX_CONNECTIONS"),
            ({"LOCATION": "x"}, "LOCATION"),
        ],
    )
    def test_wrong_options(self, use_caches: UseCaches, options: dict[str, Any], said: str) -> None:
        use_caches({}, {"default": settings_of_store("default") | {"OPTIONS": options}})
        with pytest.raises(InvalidLockConfig, match=said):
            stores["default"]

    def test_a_prefix_that_leaves_no_room_for_names(self, use_caches: UseCaches) -> None:
        use_caches({}, {"default": settings_of_store("default") | {"KEY_PREFIX": "p" * 55}})
        with pytest.raises(InvalidLockConfig, match="54"):
            stores["default"]

    def test_a_database_that_is_not_supported(self, use_caches: UseCaches) -> None:
        with database_alias("dummy", {"ENGINE": "django.db.backends.dummy"}):
            use_caches({}, {"default": settings_of_store("dummy")})
            with pytest.raises(InvalidLockConfig, match="PostgreSQL, MariaDB or SQLite"):
                stores["default"]

    @pytest.mark.parametrize("name", [":memory:", "file:locks?mode=memory&cache=shared"])
    def test_sqlite_in_memory_is_refused(self, use_caches: UseCaches, name: str) -> None:
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
        with database_alias("memory", memory):
            use_caches({}, {"default": settings_of_store("memory")})
            with pytest.raises(InvalidLockConfig, match="TEST"):
                locks.acquire("video:1")

    @pytest.mark.parametrize(
        "fixture",
        [
            "sqlite_alias",
            "postgres_alias",
            pytest.param("mariadb_alias", marks=pytest.mark.nightly),
        ],
    )
    def test_a_missing_table_is_reported(
        self, use_caches: UseCaches, request: pytest.FixtureRequest, fixture: str
    ) -> None:
        alias = request.getfixturevalue(fixture)
        if TABLE in connections[alias].introspection.table_names():
            call_command("migrate", "django_tasklock", "zero", database=alias, verbosity=0)
        use_caches({}, {"default": settings_of_store(alias)})
        with pytest.raises(StoreUnavailable, match=f"migrate --database={alias}"):
            locks.acquire("video:1")
