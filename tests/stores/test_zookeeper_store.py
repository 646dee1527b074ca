"""What `ZooKeeperStore` adds to the contract: nodes, ends by the leader's clock, rights."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from django_tasklock import InvalidLockConfig, Lease, StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from django_tasklock.stores.records import FREE, Change, Held, Record, digest_of
from django_tasklock.stores.zookeeper import ZooKeeperStore, nodes
from django_tasklock.stores.zookeeper import store as store_module
from tests.agent import run_python
from tests.conftest import UseCaches, UseZooKeeper
from tests.eager_task import assert_an_eager_task_locks_and_guards
from tests.inside import new_token
from tests.interruptions import Interrupt
from tests.steps import LONG, holder, in_child, taken
from tests.store_cases import own_prefix, zookeeper_store
from tests.waiting import until
from tests.zookeepers import ZooKeeper, client_of

CHILD = "c" * 22

# Of nodes; none of them is a record of ours.
VALUES = [
    *(b"", b"{", b"[]", b"5", b'{"token": 5}', b"\xff", b"[" * 9999),
    *(
        json.dumps({"token": "t" * 22, **more}).encode()
        for more in (
            {"lasts": 0, "child": CHILD},
            {"lasts": "9", "child": CHILD},
            {"lasts": True, "child": CHILD},
            {"lasts": 9},
            {"lasts": 9, "child": 5},
            {"lasts": 9, "child": "../video:2"},
            {"lasts": 9, "child": CHILD},  # It has no such child.
        )
    ),
]


@pytest.fixture
def store(use_zookeeper: UseZooKeeper) -> ZooKeeperStore:
    return use_zookeeper()


@pytest.fixture
def other(zookeeper_server: ZooKeeper) -> Iterator[Any]:
    """Somebody else's client of the same server."""
    with client_of(zookeeper_server.hosts) as client:
        yield client


def record() -> Record:
    return {"token": new_token(), "at": time.time()}


def elsewhere(store: ZooKeeperStore, other: Any, ttl: float) -> str:
    """A lease that a process elsewhere has taken long ago, by this process's clock. Its token."""
    token = new_token()
    other.ensure_path(store.prefix)
    make_lease(store, other, token, ttl)
    return token


def make_lease(store: ZooKeeperStore, other: Any, token: str, ttl: float) -> None:
    made = other.transaction()
    made.create(store.key("video:1"), lease_of(token, ttl))
    made.create(f"{store.key('video:1')}/{CHILD}")
    assert not any(isinstance(each, Exception) for each in made.commit())


def lease_of(token: str, ttl: float) -> bytes:
    return json.dumps({"token": token, "at": time.time(), "lasts": ttl, "child": CHILD}).encode()


class TestNodes:
    def test_a_lease_is_a_persistent_node_of_the_locks_name(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        lease, key = taken("video:1/é"), store.key("video:1/é")
        assert key == f"{store.prefix}/video:1%2F%C3%A9"
        data, stat = other.get(key)
        assert json.loads(data)["token"] == lease.token
        assert stat.ephemeralOwner == 0
        assert other.get_children(key) == [json.loads(data)["child"]]
        assert lease.fence == stat.czxid
        assert holder("video:1/é").key == key
        assert lease.release()
        assert other.exists(key) is None

    def test_every_name_is_a_node_of_its_own_and_other_nodes_are_no_locks(self) -> None:
        for name in ("a/b", "..", ".", "a%2Fb", "%clock", "é锁", "n" * 200, "~", " note", " a b"):
            node = nodes._quoted(name)
            assert node.isascii()
            assert "/" not in node
            assert node not in (".", "..", nodes.CLOCK)
            assert nodes.name_of(node) == name
        for node in ("%clock", "%ff", "a b", "é", "a%2fb", "a%20b", "x" * 201, ""):
            assert nodes.name_of(node) is None

    @pytest.mark.nightly
    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    def test_the_node_of_another_program_is_a_lock(
        self, store: ZooKeeperStore, other: Any, value: bytes
    ) -> None:
        other.create(store.key("video:1"), value, makepath=True)
        assert locks.acquire("video:1") is None
        (held,) = locks.list()
        assert (held.name, held.token, held.ttl, held.fence) == ("video:1", None, None, None)
        assert not locks.clear("video:1", digest="another value")
        assert locks.clear("video:1", digest=held.digest)
        assert taken("video:1").release()

    @pytest.mark.nightly
    def test_a_node_with_others_below_it_is_not_removed(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        """As kazoo's own ``Lock`` makes one on that path."""
        assert other.Lock(store.key("video:1"), "somebody").acquire()
        assert locks.acquire("video:1") is None
        with pytest.raises(StoreUnavailable, match="nodes of another program below it"):
            locks.clear("video:1")

    @pytest.mark.nightly
    def test_nodes_that_somebody_has_deleted_are_made_again(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        lease = taken("video:1", ttl=LONG)
        other.delete(f"{store.prefix}/{nodes.CLOCK}")
        assert lease.extend(LONG)
        other.delete(store.prefix, recursive=True)
        assert locks.list() == []
        assert taken("video:1").release()

    @pytest.mark.nightly
    def test_now_and_then_one_process_removes_what_is_over(
        self, store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A look removes nothing."""
        monkeypatch.setattr(store_module, "SWEEP_CHANCE", 0.0)
        elsewhere(store, other, 0.01)
        until(lambda: not locks.is_locked("video:1"))
        assert locks.list() == []
        assert other.exists(store.key("video:1"))
        for number in range(20):
            store.set_note(Note(f"note {number}", "text", 0.01))
        until(lambda: not locks.is_locked("video:1"))
        monkeypatch.setattr(store_module, "SWEEP_CHANCE", 1.0)
        kept = taken("kept")
        left = {nodes.CLOCK, "%20sweeping", "kept"}
        until(lambda: {*other.get_children(store.prefix)} == left)
        assert kept.release()


class TestEnds:
    def test_a_lease_ends_by_the_leaders_clock(self, store: ZooKeeperStore, other: Any) -> None:
        """This process has not seen it begin."""
        elsewhere(store, other, 1.5)
        made = other.exists(store.key("video:1"))
        assert locks.acquire("video:1") is None
        assert 0 < (holder("video:1").ttl or 0) <= 1.5
        lease = taken("video:1", wait=LONG)
        assert other.exists(store.key("video:1")).ctime - made.mtime > 1500
        assert (lease.fence or 0) > made.czxid

    @pytest.mark.nightly
    def test_a_clock_of_this_host_that_is_wrong_ends_nothing(
        self, store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere(store, other, LONG)
        assert locks.acquire("video:1") is None
        store._link.heard -= store_module.KNOWN_SECONDS - 1
        store._link.written += 3600_000
        assert locks.acquire("video:1") is None
        assert (holder("video:1").ttl or 0) > LONG / 2

    @pytest.mark.nightly
    @pytest.mark.parametrize("over", [True, False])
    def test_what_has_changed_since_it_was_read_is_not_replaced(
        self, store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch, over: bool
    ) -> None:
        """Its holder has extended it at the last moment, or somebody else has taken the lock."""
        token = elsewhere(store, other, 0.1) if over else new_token()
        time.sleep(0.2)
        real = store_module._Call.commit
        meant: list[Any] = []

        def commit(call: Any, requests: Any) -> Any:
            if not meant:
                meant.append(requests)
                if over:
                    other.set(store.key("video:1"), lease_of(token, LONG))
                else:
                    make_lease(store, other, token, LONG)
            return real(call, requests)

        other.ensure_path(store.prefix)
        monkeypatch.setattr(store_module._Call, "commit", commit)
        assert locks.acquire("video:1") is None
        assert meant
        assert holder("video:1").token == token

    @pytest.mark.parametrize("verb", ["release", "extend", "clear", "clear foreign", "sweep"])
    def test_57_what_arrives_late_changes_nothing_of_the_next_lease(
        self, store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        """A process stands still between its reading and its writing. Meanwhile the lock passes on,
        to a lease whose node has the same version."""
        late, path, foreign = ZooKeeperStore(store.settings), store.key("video:1"), b"somebody's"
        token = elsewhere(store, other, 0.01 if verb == "sweep" else LONG)
        if verb == "sweep":
            until(lambda: not locks.is_locked("video:1"))
        if verb == "clear foreign":
            other.delete(path, recursive=True)
            other.create(path, foreign)
        real, following = store_module._Call.send, list[Lease]()

        def send(call: Any, requests: Any) -> Any:
            is_late = call.link is late._link and any(path in request for request in requests)
            if is_late and not following:
                other.delete(path, recursive=True)
                following.append(taken("video:1", ttl=LONG))
            return real(call, requests)

        monkeypatch.setattr(store_module._Call, "send", send)
        if verb == "sweep":
            late._sweep()
        elif verb == "clear foreign":
            with pytest.raises(StoreUnavailable):
                late.clear("video:1", digest=digest_of(foreign))
        elif verb == "extend":
            assert not late.extend("video:1", token, 9 * LONG)
        else:
            assert not getattr(late, verb)("video:1", token)
        (lease,) = following
        assert holder("video:1").token == lease.token
        assert (holder("video:1").ttl or 0) <= LONG
        assert lease.release()
        late.close_idle()


class TestProcesses:
    @pytest.mark.nightly
    @pytest.mark.usefixtures("each_fork")
    def test_a_child_has_a_client_of_its_own(self, store: ZooKeeperStore) -> None:
        lease = taken("video:1")

        def child() -> list[bool]:
            refused = locks.acquire("video:1") is None
            return [refused, taken("video:2").release()]

        for _ in range(3):
            assert in_child(child) == [True, True]
            assert lease.extend(LONG)
        assert lease.release()

    # Where the signal comes in the callback of a weak reference, Python can only say so.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_call_that_is_interrupted_anywhere_leaves_the_client_usable(
        self, store: ZooKeeperStore
    ) -> None:
        cut = list[int]()

        def interrupt(*_: object) -> None:
            cut.append(1)
            raise Interrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        for number in range(150):
            with suppress(Interrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.004))
                    store.put([Change(f"video:{number}", FREE, record(), LONG)])
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        assert len(cut) > 10
        mine = record()
        assert store.put([Change("mine", FREE, mine, LONG)]).made
        (entry,) = store.get(["mine"])
        assert entry is not None
        assert entry.record == mine
        assert store.put([Change("mine", Held(mine["token"]), None)]).made

    @pytest.mark.nightly
    def test_under_gevent_greenlets_and_the_renewal_each_have_a_client(
        self, store: ZooKeeperStore
    ) -> None:
        program = (
            "from gevent import monkey\nmonkey.patch_all()\nimport django\ndjango.setup()\n"
            "import gevent\nfrom django_tasklock import lock, locks\n"
            "taken = [gevent.spawn(locks.acquire, f'video:{n}') for n in range(20)]\n"
            "gevent.joinall(taken)\nassert all(each.value for each in taken)\n"
            "with lock('renewed', ttl=2, renew=True) as lease:\n"
            "    gevent.sleep(5)\n    lease.assert_held()\n"
            "print(sum(each.value.release() for each in taken))\n"
        )
        assert run_python(program).split() == ["20"]

    @pytest.mark.parametrize(
        ("before", "said"),
        [
            ("import sys\nsys.modules['kazoo'] = None\n", "django-tasklock[zookeeper]"),
            pytest.param(
                "import warnings\nwarnings.simplefilter('ignore')\n"
                "import eventlet\neventlet.monkey_patch()\nimport django\ndjango.setup()\n",
                "eventlet has patched",
                marks=pytest.mark.nightly,
            ),
        ],
        ids=["without kazoo", "eventlet"],
    )
    def test_where_it_cannot_be_the_error_says_why(
        self, store: ZooKeeperStore, before: str, said: str
    ) -> None:
        if "eventlet" in before:
            pytest.importorskip("eventlet")
        program = (
            "from django_tasklock import InvalidLockConfig, locks\n"
            "try:\n    locks.acquire('video:1')\n"
            "except InvalidLockConfig as error:\n    print(error)\n"
        )
        assert said in run_python(before + program)

    def test_a_task_locks_and_guards(self, store: ZooKeeperStore, transactional_db: None) -> None:
        assert_an_eager_task_locks_and_guards()


@pytest.mark.nightly
class TestRights:
    def test_without_the_rights_the_error_names_the_option(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        other.create(store.prefix, acl=[make_digest_acl("us", "secret", all=True)])
        for ask in (lambda: locks.acquire("video:1"), locks.list, lambda: list(store.check())):
            with pytest.raises(StoreUnavailable, match=r"NoAuth.*AUTH"):
                ask()

    def test_what_is_made_with_auth_is_closed_to_others(
        self, use_zookeeper: UseZooKeeper, other: Any
    ) -> None:
        store = use_zookeeper(AUTH=[["digest", "us:secret"]])
        lease = taken("video:1")
        assert lease.extend(LONG)
        assert locks.count() == 1
        assert list(store.check()) == []
        options = {"HOSTS": store.settings.options["HOSTS"]}
        without = ZooKeeperStore(replace(store.settings, options=options))
        with pytest.raises(StoreUnavailable, match="NoAuth"):
            without.find("video:1")
        assert lease.release()

    def test_a_scheme_that_the_server_does_not_know(self, use_zookeeper: UseZooKeeper) -> None:
        use_zookeeper(AUTH=[("unknown", "us:secret")], TIMEOUT=2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"AUTH|client has ended"):
                locks.acquire("video:1")


class TestSettings:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"OPTIONS": {}}, "HOSTS"),
            ({"OPTIONS": {"HOSTS": "127.0.0.1:port"}}, "HOSTS"),
            ({"OPTIONS": {"HOSTS": "h", "AUTH": "digest"}}, "AUTH"),
            ({"OPTIONS": {"HOSTS": "h", "AUTH": [("digest", "us:secret", "")]}}, "AUTH"),
            ({"OPTIONS": {"HOSTS": "h", "TIMEOUT": 0}}, "TIMEOUT"),
            ({"OPTIONS": {"HOST": "h"}}, "HOST"),
            *(
                ({"KEY_PREFIX": prefix}, "KEY_PREFIX")
                for prefix in ("", "/", "a//b", "a/../b", ".", "zookeeper/x", "a\tb")
            ),
        ],
    )
    def test_wrong_ones(self, use_caches: UseCaches, wrong: dict[str, Any], said: str) -> None:
        use_caches({}, {"default": zookeeper_store("h") | wrong})
        with pytest.raises(InvalidLockConfig, match=said) as caught:
            stores["default"]
        assert "secret" not in str(caught.value)

    @pytest.mark.nightly
    @pytest.mark.parametrize("there", [True, False])
    def test_a_path_of_several_nodes_below_a_chroot(
        self, use_caches: UseCaches, zookeeper_server: ZooKeeper, other: Any, there: bool
    ) -> None:
        root = own_prefix()
        if there:
            other.create(f"/{root}")
        hosts = f"{zookeeper_server.hosts}/{root}"
        use_caches({}, {"default": zookeeper_store(hosts) | {"KEY_PREFIX": "/shop/locks/"}})
        lease = taken("video:1")
        assert other.exists(f"/{root}/shop/locks/video:1") is not None
        assert [info.name for info in locks.list()] == ["video:1"]
        assert lease.release()
