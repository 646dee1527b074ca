"""The connections of `DatabaseStore`: cut, silent, too few, forked, and in the way."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.database.statements import TABLE
from tests.conftest import ProxyTo, UseCaches, database_alias
from tests.proxied_databases import proxy_before, through_proxy
from tests.proxy import CutProxy
from tests.steps import LONG, taken
from tests.store_cases import database_store as settings_of_store
from tests.store_cases import make_lease_table
from tests.waiting import PATIENCE, until

TIMEOUT = 1.0
MOST = 3
CLEARS = b"owner = '', token = ''"
"""in a statement that clears a lock, and in no other"""


@pytest.fixture(params=["postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)])
def alias(request: pytest.FixtureRequest) -> str:
    alias: str = request.getfixturevalue(request.param)
    make_lease_table(alias)
    return alias


@pytest.fixture
def proxy(alias: str, proxy_to: ProxyTo) -> CutProxy:
    """In front of the server."""
    return proxy_before(alias, proxy_to)


@pytest.fixture
def store(alias: str, proxy: CutProxy, use_caches: UseCaches) -> Iterator[DatabaseStore]:
    """On that server, by way of the proxy."""
    with through_proxy(alias, proxy, use_caches, TIMEOUT=TIMEOUT, MAX_CONNECTIONS=MOST) as store:
        yield store


def sessions(alias: str, database: str) -> set[int]:
    """The server's numbers of the sessions in a database but our own."""
    with connections[alias].cursor() as cursor:
        if connections[alias].vendor == "postgresql":
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                [database],
            )
        else:
            cursor.execute(
                "SELECT id FROM information_schema.processlist "
                "WHERE db = %s AND id <> CONNECTION_ID()",
                [database],
            )
        return {number for (number,) in cursor.fetchall()}


def end_sessions(alias: str) -> int:
    """The server ends all sessions but our own. Returns how many."""
    ended = sessions(alias, connections[alias].settings_dict["NAME"])
    with connections[alias].cursor() as cursor:
        for number in ended:
            if connections[alias].vendor == "postgresql":
                cursor.execute("SELECT pg_terminate_backend(%s)", [number])
            else:
                cursor.execute(f"KILL CONNECTION {number}")
    until(lambda: not ended & sessions(alias, connections[alias].settings_dict["NAME"]))
    return len(ended)


def test_every_verb_works_after_the_server_has_ended_the_session(
    store: DatabaseStore, alias: str
) -> None:
    token, owner = new_token(), owner_record()
    verbs: list[Callable[[], Any]] = [
        lambda: isinstance(store.acquire("video:1", token, LONG, owner), Grant),
        lambda: store.extend("video:1", token, LONG),
        lambda: store.extend_many([Extension("video:1", token, LONG)]) == [True],
        lambda: store.get("video:1"),
        lambda: store.held(["video:1"]),
        lambda: len(store.list()) == 1,
        lambda: store.count() == 1,
        lambda: len(list(store.scan())) == 1,
        lambda: list(store.check()) == [],
        lambda: store.release("video:1", token),
        lambda: isinstance(store.acquire("video:1", token, LONG, owner), Grant),
        lambda: store.clear("video:1", token),
    ]
    store.count()
    for verb in verbs:
        assert end_sessions(alias) >= 1
        assert verb()


@pytest.mark.parametrize("cleared", [False, True])
def test_a_release_whose_reply_was_lost(
    store: DatabaseStore, proxy: CutProxy, cleared: bool
) -> None:
    """True if it was this release that ended the lease."""
    token = new_token()
    assert isinstance(store.acquire("video:1", token, LONG, owner_record()), Grant)
    if cleared:
        assert store.clear("video:1")
    proxy.drop_reply(b"expires = 0, owner")
    assert store.release("video:1", token) is not cleared
    assert proxy.lost_replies == 1
    assert store.get("video:1") is None


@pytest.mark.parametrize("by_token", [False, True])
def test_a_clear_whose_reply_was_lost_is_an_outage(
    store: DatabaseStore, proxy: CutProxy, by_token: bool
) -> None:
    """To say that it was not locked would be to say that somebody else has ended it."""
    lease = taken("video:1")
    proxy.drop_reply(CLEARS)
    with pytest.raises(StoreUnavailable, match="may have been cleared"):
        locks.clear("video:1", lease.token if by_token else None)
    assert proxy.lost_replies == 1
    assert not locks.is_locked("video:1")


def test_a_clear_that_is_sent_again_leaves_the_next_holder_alone(
    store: DatabaseStore,
    alias: str,
    proxy: CutProxy,
    use_caches: UseCaches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken("video:1")
    tasklock = {"default": settings_of_store("proxied"), "direct": settings_of_store(alias)}
    use_caches({}, tasklock)
    # Given another that takes the lock when it is cleared, and before the caller hears of that
    lost, taken_by_another = proxy._lost_one, []

    def take() -> None:
        taken_by_another.append(locks.using("direct").acquire("video:1", ttl=LONG))
        lost()

    monkeypatch.setattr(proxy, "_lost_one", take)
    locks.get("video:1")
    proxy.drop_reply(CLEARS)
    with pytest.raises(StoreUnavailable):
        locks.clear("video:1")
    (other,) = taken_by_another
    assert other is not None
    assert other.extend(LONG), "it was cleared"


def test_the_command_does_not_say_of_a_lock_that_it_has_cleared_that_it_is_not_locked(
    store: DatabaseStore, proxy: CutProxy
) -> None:
    taken("video:1")
    proxy.drop_reply(CLEARS)
    with pytest.raises(CommandError, match="may have been cleared"):
        call_command("locks", "clear", "video:1", "--noinput")
    assert not locks.is_locked("video:1")


def test_an_acquire_whose_reply_was_lost_is_granted(store: DatabaseStore, proxy: CutProxy) -> None:
    store.count()
    proxy.drop_reply(b"INSERT INTO django_tasklock_lease")
    token = new_token()
    answer = store.acquire("video:1", token, LONG, owner_record())
    assert isinstance(answer, Grant)
    assert proxy.lost_replies == 1
    held = store.get("video:1")
    assert held is not None
    assert (held.token, held.fence) == (token, answer.fence)


def test_a_silent_server_holds_nobody_up(store: DatabaseStore, proxy: CutProxy) -> None:
    lease = taken("video:1")
    proxy.pause()
    began = time.monotonic()
    for verb in (lambda: locks.acquire("video:2"), lease.extend, locks.list):
        with pytest.raises(StoreUnavailable):
            verb()
    assert time.monotonic() - began < PATIENCE
    proxy.resume()
    proxy.cut()
    assert locks.is_locked("video:1")
    assert lease.release()


def test_a_server_that_is_down_is_an_outage(store: DatabaseStore, proxy: CutProxy) -> None:
    lease = taken("video:1")
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        locks.acquire("video:2")
    with pytest.raises(StoreUnavailable):
        locks.is_locked("video:1")
    proxy.accept()
    assert lease.extend()
    assert lease.release()


def test_fifty_threads_share_a_few_connections(
    store: DatabaseStore, alias: str, use_caches: UseCaches
) -> None:
    options = settings_of_store("proxied", TIMEOUT=PATIENCE, MAX_CONNECTIONS=MOST)
    use_caches({}, {"default": options})
    patient = stores["default"]
    assert isinstance(patient, DatabaseStore)
    name = connections[alias].settings_dict["NAME"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # What other tests have left is theirs.
        gc.collect()
    earlier = len(sessions(alias, name))  # Of other tests' stores; they may end at any time.
    most: list[int] = []
    errors: list[Exception] = []
    together = threading.Barrier(50)

    def work(number: int) -> None:
        try:
            together.wait(PATIENCE)
            for turn in range(5):
                lease = locks.acquire(f"video:{number % 10}", ttl=LONG)
                if lease is not None:
                    assert lease.release()
                if number == 0:
                    most.append(len(patient._connections._slots))
                del turn
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert max(most) <= MOST
    assert 1 <= len(sessions(alias, name)) <= earlier + MOST


def test_a_call_that_finds_no_connection_says_so(store: DatabaseStore, proxy: CutProxy) -> None:
    store.count()
    taking = [store._connections._take() for _ in range(MOST)]
    with pytest.raises(StoreUnavailable, match="MAX_CONNECTIONS"):
        store.count()
    for slot in taking:
        store._connections._give_back(slot, usable=slot.wrapper is not None)
    assert store.count() == 0


def test_a_child_has_connections_of_its_own(store: DatabaseStore, alias: str) -> None:
    token = new_token()
    assert isinstance(store.acquire("video:1", token, LONG, owner_record()), Grant)
    before = sessions(alias, connections[alias].settings_dict["NAME"])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            other = new_token()
            granted = store.acquire("video:2", other, LONG, owner_record())
            code = 0 if isinstance(granted, Grant) and store.get("video:1") is not None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.release("video:1", token)
    assert store.clear("video:2")
    assert before <= sessions(alias, connections[alias].settings_dict["NAME"])


def test_no_connection_keeps_a_test_database_from_being_dropped(
    store: DatabaseStore, alias: str
) -> None:
    """Django connects without a database to drop one."""
    store.count()
    name = connections[alias].settings_dict["NAME"]
    assert sessions(alias, name)
    with connections[alias]._nodb_cursor() as cursor:
        cursor.execute("SELECT 1")
    until(lambda: not sessions(alias, name))
    assert store.count() == 0


def test_a_database_of_another_name_is_used_at_once(store: DatabaseStore) -> None:
    """As when a test run begins: it changes NAME in the settings that there are."""
    settings = connections.settings["proxied"]
    taken("video:1").release()
    settings["NAME"] += "_other"
    connections["proxied"].settings_dict["NAME"] = settings["NAME"]
    with pytest.raises(StoreUnavailable, match="_other"):
        locks.acquire("video:1")


@pytest.mark.parametrize(
    "options",
    [
        {"server_side_binding": True},
        {"isolation_level": 4},
        {"prepare_threshold": 0},
        {"pool": True},
    ],
    ids=str,
)
def test_options_of_the_applications_connections(
    postgres_alias: str, use_caches: UseCaches, options: dict[str, Any]
) -> None:
    make_lease_table(postgres_alias)
    there: Any = dict(connections.settings[postgres_alias])
    with database_alias("there", there | {"OPTIONS": there["OPTIONS"] | options}):
        use_caches({}, {"default": settings_of_store("there")})
        for _ in range(3):
            lease, other = taken("video:1"), taken("video:2")
            assert locks.acquire("video:1", wait=0.01) is None
            batch = [Extension(each.name, each.token, ttl) for each, ttl in
                     ((lease, LONG), (other, 2 * LONG))]  # fmt: skip
            assert stores["default"].extend_many(batch) == [True, True]
            assert [info.name for info in locks.list("video:")] == ["video:1", "video:2"]
            assert lease.release()
            assert locks.clear("video:2")
        stores.forget()


def test_connection_is_closed_when_its_alias_is_gone(alias: str, use_caches: UseCaches) -> None:
    settings = dict(connections.settings[alias])
    with database_alias("soon-gone", settings):
        use_caches({}, {"default": settings_of_store("soon-gone")})
        before = sessions(alias, settings["NAME"])
        lease = taken("video:1")
        (own,) = sessions(alias, settings["NAME"]) - before
    with pytest.raises(Exception, match="soon-gone"):
        lease.extend(LONG)
    until(lambda: own not in sessions(alias, settings["NAME"]), "the end of its session")


@pytest.fixture
def undoing(postgres_alias: str, use_caches: UseCaches) -> Iterator[Callable[[int], None]]:
    """``undoing(times)``: PostgreSQL undoes so many statements of the store, one after the other,
    as it does for the sake of others where transactions are serializable."""
    make_lease_table(postgres_alias)
    use_caches({}, {"default": settings_of_store(postgres_alias, TIMEOUT=TIMEOUT)})

    def begin(times: int) -> None:
        run(
            "CREATE SEQUENCE undone",  # Its numbers are not given back.
            f"CREATE FUNCTION undo() RETURNS trigger AS $$ BEGIN IF nextval('undone') <= {times} "
            "THEN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END IF; "
            "RETURN NEW; END $$ LANGUAGE plpgsql",
            f"CREATE TRIGGER undo BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION undo()",
        )

    def run(*statements: str) -> None:
        with connections[postgres_alias].cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)

    yield begin
    run("DROP FUNCTION undo CASCADE", "DROP SEQUENCE undone")


def test_a_statement_that_is_undone_is_sent_again(undoing: Callable[[int], None]) -> None:
    undoing(5)
    assert taken("video:1").release()


def test_a_statement_that_is_always_undone_is_an_outage(undoing: Callable[[int], None]) -> None:
    undoing(1_000_000)
    with pytest.raises(StoreUnavailable, match="could not serialize"):
        locks.acquire("video:1")
