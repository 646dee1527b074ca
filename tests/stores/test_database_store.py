"""What `DatabaseStore` adds to the contract: its rows, their fences, and what is done at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import DatabaseError, connections, transaction
from django.db.models import F

from django_tasklock import StoreUnavailable, lock, locks
from django_tasklock.models import LeaseRow
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note, Refusal
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.records import FREE, KEEP, Change, new_record, note_name, note_record
from django_tasklock.testing.steps import asked, granted, refused
from tests.agent import Agent
from tests.conftest import UseCaches, database_alias
from tests.inside import late_write, new_token, once_rows_were_read, owner_record, sweep_rows
from tests.steps import LONG, Meanwhile, holder, taken, unavailable
from tests.store_cases import database_store as settings_of_store
from tests.stores.conftest import ON_DATABASES
from tests.waiting import PATIENCE, until

DAY = 86_400_000_000
"""microseconds"""


def fence_of(store: DatabaseStore, name: str, token: str | None = None) -> int:
    """The fence of a new lease."""
    return granted(store, name, token=token).grant.fence or 0


def released(store: DatabaseStore, name: str) -> int:
    """The fence of a lease that was released."""
    lease = granted(store, name)
    assert lease.release()
    return lease.grant.fence or 0


def rows(store: DatabaseStore, *names: str) -> Any:
    """The rows of some locks; of all, if none is named."""
    found = LeaseRow.objects.using(store.database).all()
    return found.filter(name__in=[store.key(name) for name in names]) if names else found


def make_older(store: DatabaseStore, *names: str) -> None:
    """As if their last leases had been granted two days ago."""
    assert rows(store, *names).update(fence=F("fence") - 2 * DAY) == len(names)


def test_only_old_rows_that_nothing_holds_are_swept(database_store: DatabaseStore) -> None:
    # Given locks that are held, released, or over, some of them long ago
    for name in ("held", "old-and-held"):
        granted(database_store, name)
    for name in ("released", "old-and-released"):
        released(database_store, name)
    granted(database_store, "old-and-over", ttl=0.001)
    until(lambda: database_store.find("old-and-over") is None)
    make_older(database_store, "old-and-held", "old-and-released", "old-and-over")

    # I expect those to be left that are held, and those of today
    left = {database_store.key(name) for name in ("held", "old-and-held", "released")}

    def swept() -> bool:
        """Taking locks sweeps, now and then."""
        released(database_store, "released")
        return {row.name for row in rows(database_store)} == left

    until(swept, every=0)

    # And nothing to be left of the owner of one that was released
    (row,) = rows(database_store, "released")
    assert (row.token, row.record, row.expires) == ("", "", 0)


def test_a_fence_grows_though_the_clock_was_set_back(database_store: DatabaseStore) -> None:
    """The last lease was granted at a time that is still to come."""
    ahead = fence_of(database_store, "video:1") + 20 * 60_000_000
    rows(database_store, "video:1").update(fence=ahead)
    assert database_store.clear("video:1")
    token = new_token()
    assert fence_of(database_store, "video:1", token) == ahead + 1
    assert fence_of(database_store, "video:1", token) == ahead + 1, "the same lease"
    assert database_store.release("video:1", token)
    sweep_rows(database_store)
    assert fence_of(database_store, "video:1", token) == ahead + 2, "another lease"
    before = released(database_store, "video:2")
    make_older(database_store, "video:2")
    sweep_rows(database_store)
    assert not rows(database_store, "video:2").exists()
    assert fence_of(database_store, "video:2") > before


@pytest.mark.parametrize("record", ["", "no JSON", "[1]", '{"token": 5}', '{"pid": "none"}'])
def test_a_row_that_somebody_else_wrote_is_a_lock(
    database_store: DatabaseStore, record: str
) -> None:
    lease = granted(database_store, "video:1")
    rows(database_store, "video:1").update(record=record)
    held = refused(database_store, "video:1")
    assert (held.token, held.owner.pid) == (None, None)
    assert held.digest is not None
    assert not lease.release()
    assert not database_store.clear("video:1", digest="another digest")
    assert database_store.clear("video:1", digest=held.digest)
    assert database_store.find("video:1") is None


def test_a_call_on_a_loop_is_served_and_closes_what_it_has_opened(
    database_store: DatabaseStore,
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


@pytest.mark.parametrize("is_new", [True, False])
def test_what_is_written_after_its_token_was_given_back_changes_nothing(
    database_store: DatabaseStore, is_new: bool
) -> None:
    """Its caller has given up, and the server has held the statement up."""
    if not is_new:
        released(database_store, "video:1")
    token = new_token()
    write = late_write(database_store, "video:1", token, DAY)
    assert not database_store.release("video:1", token)
    assert not write()
    assert database_store.find("video:1") is None


@pytest.mark.parametrize("is_new", [True, False])
def test_what_has_changed_since_it_was_read_is_read_anew(
    database_store: DatabaseStore, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    other, token = DatabaseStore(database_store.settings), new_token()
    if not is_new:
        released(database_store, "video:1")
    once_rows_were_read(monkeypatch, partial(granted, other, "video:1", token=token))
    assert refused(database_store, "video:1").token == token


def test_nothing_is_put_while_a_lock_is_held_that_has_to_be_free(
    database_store: DatabaseStore,
) -> None:
    """A note is written if the lock is free. Whoever takes the lock finds the note."""
    for turn in range(20):
        name, key = f"video:{turn}", f"note {turn}"
        note = Change(note_name(key), FREE, note_record(new_token()), LONG)

        def take(name: str = name, key: str = key) -> bool:
            database_store.put([Change(name, FREE, new_record(new_token(), {}), LONG)])
            return database_store.get_note(key) is not None

        taking = Meanwhile(take)
        made = database_store.put([note, Change(name, FREE, KEEP)]).made
        assert taking.result(PATIENCE) or not made


@pytest.mark.parametrize("alias", ON_DATABASES, indirect=True)
def test_a_missing_table_is_reported(use_caches: UseCaches, alias: str) -> None:
    call_command("migrate", "django_tasklock", "zero", database=alias, verbosity=0)
    says = f"migrate django_tasklock --database={alias}"
    unavailable(lambda: locks.acquire("video:1"), lambda: [*stores["default"].check()], says=says)


def test_names_that_a_database_may_take_for_one_another(database_store: DatabaseStore) -> None:
    # Given locks whose names a collation, or Unicode, holds to be alike
    alike = [
        "video", "Video", "VIDEO", "vidéo", "vide\u0301o", "straße", "strasse", "STRASSE",
        "ﬁle", "file", "Ωmega", "ωmega", "ｖideo", "ı", "i", "İ", "ß", "ẞ",
    ]  # fmt: skip
    leases = [granted(database_store, name) for name in alike]

    # I expect each to be a lock of its own, in a list as well
    tokens = {lease.name: lease.token for lease in leases}
    assert {info.name: info.token for info in database_store.walk()} == tokens
    found = database_store.find_many([*alike, "VIDEo"])
    assert [info and info.token for info in found] == [*tokens.values(), None]

    # And each to be released for itself
    assert all(lease.release() for lease in leases)
    assert database_store.count() == 0
    # So are the longest, in the widest characters.
    for end in ("🔒", "'", '"', "\\", "%", "_", "`"):
        lease = granted(database_store, "🔑" * 199 + end)
        assert [info.name for info in database_store.list(lease.name)] == [lease.name]
        assert lease.release()


def test_tokens_are_compared_by_case(database_store: DatabaseStore) -> None:
    granted(database_store, "video:1", token="a" * 22)
    assert database_store.release("video:1", "A" * 22) is False
    assert database_store.extend("video:1", "A" * 22, LONG) is False
    assert isinstance(asked(database_store, "video:1", "A" * 22), Refusal)
    assert database_store.clear("video:1", "A" * 22) is False
    assert database_store.clear("video:1", "a" * 22) is True


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("a", {"a", "a%", "a%b", "aa"}),
        ("a%", {"a%", "a%b"}),
        *((none, set()) for none in ("_", "A", "\ud7ff", "\ud800", "\x00", "a b", "\U0010ffff")),
        ("🔒", {"🔒1"}),
        ("'; DROP TABLE django_tasklock_lease; --", set()),
    ],
)
def test_prefixes(database_store: DatabaseStore, prefix: str, found: set[str]) -> None:
    for name in ("a", "a%", "a%b", "aa", "b", "🔒1"):
        granted(database_store, name)
    assert {info.name for info in database_store.list(prefix)} == found
    assert database_store.count(prefix) == len(found)


def test_two_prefixes_in_one_table(database_store: DatabaseStore, use_caches: UseCaches) -> None:
    one = settings_of_store(database_store.database)
    use_caches({}, {"default": one, "other": one | {"KEY_PREFIX": "other"}})
    for alias in ("default", "other"):
        granted(stores[alias], "video:1", token="t" * 22)
        stores[alias].set_note(Note("a note", alias, LONG))
    assert [info.key for info in locks.list()] == ["lock:video:1"]
    (there,) = locks.using("other").list("vid")
    assert (there.name, there.key, there.store) == ("video:1", "other:video:1", "other")
    assert locks.using("other").clear("video:1")
    assert locks.count() == 1
    assert stores["default"].get_note("a note") == "default"
    # Notes fit beside the longest one.
    store = DatabaseStore(replace(database_store.settings, key_prefix="p" * 34))
    for key in ("k" * 219, "k" * 500, "ends with a space ", "ends with a space"):
        store.set_note(Note(key, f"of {key}", LONG))
        assert store.get_note(key) == f"of {key}"
    assert store.get_note("ends with a space ") == "of ends with a space "


def test_a_list_goes_through_all_of_many(database_store: DatabaseStore) -> None:
    """In pages: a lease that is extended meanwhile does not come twice."""
    names = [f"video:{number}" for number in range(603)]
    tokens = {name: new_token() for name in names}
    for part in (names[:300], names[300:]):
        wanted = {name: tokens[name] for name in part}
        assert database_store.acquire_all(wanted, LONG, owner_record())
    found: list[str] = []
    for entry in database_store.list("video:"):
        if not found:
            assert database_store.extend(entry.name, tokens[entry.name], 2 * LONG)
        found.append(entry.name)
    assert sorted(found) == sorted(names)
    assert database_store.count("video:") == len(names)
    assert [info and info.name for info in database_store.find_many(names)] == names


IN_INDIA = {
    "postgresql": {"options": "-c TimeZone=Asia/Kolkata"},
    "mysql": {"init_command": "SET time_zone = '+05:30'"},
}


def test_a_session_in_another_time_zone(use_caches: UseCaches, alias: str) -> None:
    there: Any = connections.settings[alias] | {"TIME_ZONE": "Asia/Kolkata"}
    there["OPTIONS"] = there["OPTIONS"] | IN_INDIA[connections[alias].vendor]
    with database_alias("there", there):
        use_caches({}, {"default": settings_of_store(alias), "there": settings_of_store("there")})
        assert locks.using("there").acquire("video:1", ttl=LONG) is not None
        assert locks.acquire("video:1") is None
        held = holder("video:1")
        assert 0 < (held.ttl or 0) <= LONG
        assert held.acquired_at is not None
        age = datetime.now(timezone.utc) - held.acquired_at
        assert abs(age.total_seconds()) < 600
        stores.forget()


# The caller's own connection, whose transaction neither hides a lease nor takes it back.


@pytest.fixture
def written(alias: str) -> Iterator[str]:
    """The alias of a database with a table of the application, beside the locks.

    SQLite has one writer to a file: there the application has another one."""
    written = "default" if alias == "sqlite" else alias
    with connections[written].cursor() as cursor:
        cursor.execute("CREATE TABLE work (done integer)")
    yield written
    with connections[written].cursor() as cursor:
        cursor.execute("DROP TABLE work")


on_each = pytest.mark.parametrize("alias", ON_DATABASES, indirect=True)


def write(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO work VALUES (1)")


@on_each
def test_what_was_taken_and_released_stays_so_when_the_transaction_is_rolled_back(
    written: str,
) -> None:
    released = taken("video:2")
    with transaction.atomic(using=written):
        write(written)
        lease = taken("video:1")
        assert released.release()
        transaction.set_rollback(True, using=written)
    assert [info.name for info in locks.list()] == ["video:1"]
    assert lease.extend()
    assert lease.release()
    # Nor does a failed one take a lock with it. PostgreSQL refuses every statement of such a one.
    with (
        pytest.raises(DatabaseError, match="no_such_table"),
        transaction.atomic(using=written),
        lock("video:1") as held,
    ):
        connections[written].cursor().execute("SELECT * FROM no_such_table")
    assert not held.held
    assert not locks.is_locked("video:1")


@on_each
def test_another_process_sees_a_lease_while_the_transaction_is_open(written: str) -> None:
    with Agent() as other, transaction.atomic(using=written):
        write(written)
        lease = taken("video:1")
        assert other.ask("acquire", name="video:1") is None
        assert lease.release()
        answer = other.ask("acquire", name="video:1")
        assert answer["fence"] > (lease.fence or 0)
        assert not locks.acquire("video:1"), "nor is what others do hidden from the caller"
        assert other.ask("release") is True
        assert taken("video:1").release()


def test_a_caller_that_has_written_to_sqlite_is_told_that_it_waits_for_itself(
    transactional_db: None, use_caches: UseCaches
) -> None:
    """The locks are in the very file that the application writes to."""
    use_caches({}, {"default": settings_of_store("default", TIMEOUT=1.0)})
    lease = taken("video:1")
    for verb in (
        lambda: locks.acquire("video:2"),
        lambda: locks.acquire("video:2", wait=LONG),
        lease.extend,
        lambda: locks.clear("video:1"),
    ):
        with transaction.atomic():
            Group.objects.create(name="writers")
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="caller's own transaction") as caught:
                verb()
            assert time.monotonic() - began < LONG
            assert 'OPTIONS["DATABASE"]' in str(caught.value)
            assert locks.count() == 1, "what reads works meanwhile"
            transaction.set_rollback(True)
    assert lease.release()


def test_another_writer_to_sqlite_is_waited_for(
    transactional_db: None, use_caches: UseCaches
) -> None:
    """Others' transactions end without the caller."""
    use_caches({}, {"default": settings_of_store("default")})
    writer = connections.create_connection("default")
    writer.inc_thread_sharing()
    writer.cursor().execute("BEGIN IMMEDIATE")
    waiter = Meanwhile(lambda: taken("video:1"))
    time.sleep(0.3)
    assert waiter.is_alive()
    writer.cursor().execute("COMMIT")
    writer.close()
    assert waiter.result().release()
