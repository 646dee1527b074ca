"""What `DatabaseStore` adds to the contract: its rows, their fences, and settings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.models import F

from django_tasklock import InvalidLockConfig, StoreUnavailable, lock, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.models import LeaseRow
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Note, Refusal
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.database import store as store_module
from django_tasklock.stores.database.connections import Connection
from django_tasklock.stores.database.store import TABLE
from django_tasklock.stores.records import FREE, KEEP, Change, new_record, note_name, note_record
from tests.conftest import UseCaches, database_alias
from tests.steps import LONG, Meanwhile
from tests.store_cases import database_store as settings_of_store
from tests.waiting import PATIENCE, until

TTL = 30.0
DAY = 86_400_000_000
"""microseconds"""


def granted(store: DatabaseStore, name: str, token: str | None = None, ttl: float = TTL) -> int:
    """The fence of a lease."""
    answer = store.acquire([name], token or new_token(), ttl, owner_record())
    assert isinstance(answer, Grant), answer
    assert answer.fence is not None
    return answer.fence


def released(store: DatabaseStore, name: str) -> int:
    """The fence of a lease that was released."""
    token = new_token()
    fence = granted(store, name, token)
    assert store.release(name, token)
    return fence


def rows(store: DatabaseStore, *names: str) -> Any:
    """The rows of some locks; of all, if none is named."""
    found = LeaseRow.objects.using(store.database).all()
    return found.filter(name__in=[store.key(name) for name in names]) if names else found


def make_older(store: DatabaseStore, *names: str) -> None:
    """As if their last leases had been granted two days ago."""
    assert rows(store, *names).update(fence=F("fence") - 2 * DAY) == len(names)


class TestFences:
    def test_a_fence_grows_though_the_clock_was_set_back(
        self, database_store: DatabaseStore
    ) -> None:
        """The last lease was granted at a time that is still to come."""
        ahead = granted(database_store, "video:1") + 20 * 60_000_000
        rows(database_store, "video:1").update(fence=ahead)
        assert database_store.clear("video:1")
        token = new_token()
        assert granted(database_store, "video:1", token) == ahead + 1
        assert granted(database_store, "video:1", token) == ahead + 1, "the same lease"
        assert database_store.release("video:1", token)
        database_store._run(store_module._sweep)
        assert granted(database_store, "video:1", token) == ahead + 2, "another lease"
        before = released(database_store, "video:2")
        make_older(database_store, "video:2")
        database_store._run(store_module._sweep)
        assert not rows(database_store, "video:2").exists()
        assert granted(database_store, "video:2") > before


class TestRows:
    def test_only_old_rows_that_nothing_holds_are_swept(
        self, database_store: DatabaseStore
    ) -> None:
        for name in ("held", "old-and-held"):
            granted(database_store, name)
        for name in ("released", "old-and-released"):
            released(database_store, name)
        granted(database_store, "old-and-over", ttl=0.001)
        until(lambda: database_store.find("old-and-over") is None)
        make_older(database_store, "old-and-held", "old-and-released", "old-and-over")
        left = {database_store.key(name) for name in ("held", "old-and-held", "released")}

        def swept() -> bool:
            """Taking locks sweeps, now and then."""
            released(database_store, "released")
            return {row.name for row in rows(database_store)} == left

        until(swept, every=0)
        (row,) = rows(database_store, "released")
        assert (row.token, row.record, row.expires) == ("", "", 0), "nothing of its owner"

    @pytest.mark.parametrize("record", ["", "no JSON", "[1]", '{"token": 5}', '{"pid": "none"}'])
    def test_a_row_that_somebody_else_wrote_is_a_lock(
        self, database_store: DatabaseStore, record: str
    ) -> None:
        token = new_token()
        granted(database_store, "video:1", token)
        rows(database_store, "video:1").update(record=record)
        held = database_store.find("video:1")
        assert held is not None
        assert (held.token, held.owner.pid) == (None, None)
        assert held.digest is not None
        assert locks.acquire("video:1") is None
        assert not database_store.release("video:1", token)
        assert not database_store.clear("video:1", digest="another digest")
        assert database_store.clear("video:1", digest=held.digest)
        assert database_store.find("video:1") is None


class TestEventLoops:
    def test_a_call_on_a_loop_is_served_and_closes_what_it_has_opened(
        self, database_store: DatabaseStore
    ) -> None:
        """Django connects on none, and takes statements there: an idle connection is chance."""

        async def take() -> bool:
            with lock("video:1") as lease:
                return lease.held

        async def close() -> None:
            database_store.close_idle()

        database_store.close_idle()
        assert asyncio.run(take())
        (idle,) = database_store._connections._idle.own()
        assert asyncio.run(take())
        assert [*database_store._connections._idle.own()] == [idle]
        asyncio.run(close())
        assert idle._wrapper.connection is None


class TestAtOnce:
    @pytest.mark.parametrize("is_new", [True, False])
    def test_what_is_written_after_its_token_was_given_back_changes_nothing(
        self, database_store: DatabaseStore, is_new: bool
    ) -> None:
        """Its caller has given up, and the server has held the statement up."""
        if not is_new:
            released(database_store, "video:1")
        late = Connection(database_store.database, TTL)
        key, token = database_store.key("video:1"), new_token()
        read, now = store_module._read(late, [key])
        assert not database_store.release("video:1", token)
        row = store_module.LockRow(key, token, expires=now + DAY, began=now, fence=now)
        assert not store_module._write(late, read, [row])
        assert database_store.find("video:1") is None
        late.close()

    @pytest.mark.parametrize("is_new", [True, False])
    def test_what_has_changed_since_it_was_read_is_read_anew(
        self, database_store: DatabaseStore, monkeypatch: pytest.MonkeyPatch, is_new: bool
    ) -> None:
        other, token = DatabaseStore(database_store.settings), new_token()
        if not is_new:
            released(database_store, "video:1")
        read = store_module._read

        def read_just_before_another_takes_it(*asked: Any, **keys: Any) -> Any:
            answer = read(*asked, **keys)
            monkeypatch.undo()
            granted(other, "video:1", token)
            return answer

        monkeypatch.setattr(store_module, "_read", read_just_before_another_takes_it)
        answer = database_store.acquire(["video:1"], new_token(), TTL, owner_record())
        assert isinstance(answer, Refusal)
        assert answer.holder.token == token

    def test_several_names_in_any_order_never_block_each_other(
        self, database_store: DatabaseStore
    ) -> None:
        names = [f"seat:{number}" for number in range(4)]

        def work(own: list[str]) -> None:
            for _ in range(10):
                with lock(own, wait=PATIENCE):
                    pass

        workers = [Meanwhile(partial(work, own)) for own in (names, names[::-1]) * 2]
        for worker in workers:
            worker.result(PATIENCE)
        assert database_store.count() == 0

    def test_nothing_is_put_while_a_lock_is_held_that_has_to_be_free(
        self, database_store: DatabaseStore
    ) -> None:
        """A note is written if the lock is free. Whoever takes the lock finds the note."""
        for turn in range(20):
            name, key, text = f"video:{turn}", f"note {turn}", new_token()
            changes = [
                Change(note_name(key), FREE, note_record(text), TTL), Change(name, FREE, KEEP),
            ]  # fmt: skip

            def take(name: str = name, key: str = key) -> bool:
                database_store.put([Change(name, FREE, new_record(new_token(), {}), TTL)])
                return database_store.get_note(key) is not None

            taking = Meanwhile(take)
            made = database_store.put(changes).made
            assert taking.result(PATIENCE) or not made


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"OPTIONS": {"DATABASE": "none"}}, "none"),
            ({"OPTIONS": {"DATABASE": 5}}, "DATABASE"),
            ({"OPTIONS": {"TIMEOUT": 0}}, "TIMEOUT"),
            ({"OPTIONS": {"TIMEOUT": "5"}}, "TIMEOUT"),
            ({"OPTIONS": {"MAX_CONNECTIONS": 5}}, "MAX_CONNECTIONS"),
            ({"KEY_PREFIX": "p" * 35}, "34"),
        ],
    )
    def test_wrong_ones(self, use_caches: UseCaches, options: dict[str, Any], said: str) -> None:
        use_caches({}, {"default": settings_of_store("default") | options})
        with pytest.raises(InvalidLockConfig, match=said):
            stores["default"]

    @pytest.mark.parametrize("name", [None, ":memory:", "file:locks?mode=memory&cache=shared"])
    def test_a_database_that_cannot_keep_locks(
        self, use_caches: UseCaches, name: str | None
    ) -> None:
        engine = f"django.db.backends.{'sqlite3' if name else 'dummy'}"
        with database_alias("other", {"ENGINE": engine, "NAME": name or ""}):
            use_caches({}, {"default": settings_of_store("other")})
            with pytest.raises(InvalidLockConfig, match="in tests as TEST"):
                locks.acquire("video:1", ttl=LONG)

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
        for verb in (lambda: locks.acquire("video:1"), lambda: [*stores["default"].check()]):
            with pytest.raises(
                StoreUnavailable, match=f"migrate django_tasklock --database={alias}"
            ):
                verb()

    def test_notes_fit_beside_the_longest_prefix(self, database_store: DatabaseStore) -> None:
        store = DatabaseStore(replace(database_store.settings, key_prefix="p" * 34))
        for key in ("k" * 219, "k" * 500, "ends with a space ", "ends with a space"):
            store.set_note(Note(key, f"of {key}", TTL))
            assert store.get_note(key) == f"of {key}"
        assert store.get_note("ends with a space ") == "of ends with a space "
