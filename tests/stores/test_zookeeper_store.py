"""What `ZooKeeperStore` adds to the contract: nodes, ends of leases, lost replies, rights."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from django_tasklock import InvalidLockConfig, StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Note, Refusal
from django_tasklock.stores.zookeeper import ZooKeeperStore
from django_tasklock.stores.zookeeper import link as link_module
from django_tasklock.stores.zookeeper import notes as notes_module
from tests.agent import run_python
from tests.conftest import ProxyTo, UseCaches, UseZooKeeper
from tests.steps import LONG, Meanwhile, holder, in_child, taken, waiting
from tests.store_cases import own_prefix, zookeeper_store
from tests.waiting import PATIENCE, until
from tests.zookeepers import ZooKeeper, children, client_of, own_zookeeper

VALUES = [
    *(b"", b"{", b"[]", b"5", b'{"token": 5}', b"\xff", b"[" * 9999),
    json.dumps({"token": "t" * 22, "lasts": 60.0}).encode(),
]
"""of nodes: none of them is a record of ours"""


@pytest.fixture
def store(use_zookeeper: UseZooKeeper) -> ZooKeeperStore:
    return use_zookeeper()


@pytest.fixture
def other(zookeeper_server: ZooKeeper) -> Iterator[Any]:
    """Somebody else's client of the same server."""
    with client_of(zookeeper_server.hosts) as client:
        yield client


def granted(store: ZooKeeperStore, token: str, ttl: float = LONG) -> Grant:
    answer = store.acquire("video:1", token, ttl, owner_record())
    assert isinstance(answer, Grant), answer
    return answer


def stuck(client: Any, path: str, token: str, ttl: float, **more: Any) -> str:
    """A lease of a process that lives, and does nothing about its end. Returns its node."""
    record = {"token": token, "at": time.time(), "lasts": ttl, **more}
    node: str = client.create(
        f"{path}/{token}.", json.dumps(record).encode(), ephemeral=True, sequence=True,
        makepath=True,
    )  # fmt: skip
    return node


class TestNodes:
    def test_a_lease_is_an_ephemeral_node_with_its_token(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        lease, key = taken("video:1/é"), store.key("video:1/é")
        assert key == f"{store.options.prefix}/video:1%2F%C3%A9"
        (child,) = children(other, key)
        stat = other.exists(f"{key}/{child}")
        assert child.startswith(f"{lease.token}.")
        assert stat.ephemeralOwner != 0
        assert lease.fence == stat.czxid
        assert holder("video:1/é").key == key
        assert lease.release()
        assert children(other, key) == []

    @pytest.mark.nightly
    def test_a_refusal_leaves_no_node(self, store: ZooKeeperStore, other: Any) -> None:
        taken("video:1")
        (before,) = children(other, store.key("video:1"))
        last = other.exists(store.key("video:1")).cversion
        for _ in range(5):
            assert locks.acquire("video:1") is None
        assert children(other, store.key("video:1")) == [before]
        assert other.exists(store.key("video:1")).cversion == last, "there was one for a moment"

    @pytest.mark.nightly
    def test_the_server_deletes_the_node_of_a_lock_that_nobody_uses(
        self, use_zookeeper: UseZooKeeper
    ) -> None:
        """And that of a lock which is in use comes back each time."""
        with own_zookeeper(jvm=["-Dznode.container.checkIntervalMs=50"]) as server:
            store = use_zookeeper(server.hosts)
            with client_of(server.hosts) as other:
                assert taken("video:1").release()
                until(lambda: children(other, store.options.prefix) == [])
            for _ in range(300):
                assert taken("video:1").release()

    @pytest.mark.nightly
    def test_a_lock_whose_node_is_deleted_again_and_again(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        fences = []
        for _ in range(3):
            lease = taken("video:1")
            fences.append(lease.fence or 0)
            assert lease.release()
            other.delete(store.key("video:1"))
        assert fences == sorted(set(fences)), "each node begins to count from 0"
        other.delete(store.options.prefix, recursive=True)
        assert taken("video:1").release()

    @pytest.mark.nightly
    def test_the_lock_of_another_program_is_a_lock(self, store: ZooKeeperStore, other: Any) -> None:
        theirs = other.Lock(store.key("video:1"), "somebody")
        assert theirs.acquire()
        assert locks.acquire("video:1") is None
        held = holder("video:1")
        assert (held.token, held.ttl, held.fence, held.acquired_at) == (None, None, None, None)
        assert [info.name for info in locks.list()] == ["video:1"]
        assert not locks.clear("video:1", digest="another value")
        assert locks.clear("video:1", digest=held.digest)
        lease = taken("video:1")
        ours = {"extra_lock_patterns": [r"\."]}
        assert not other.Lock(store.key("video:1"), **ours).acquire(blocking=False)
        assert lease.release()

    @pytest.mark.nightly
    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    def test_a_node_with_our_name_and_somebodys_value(
        self, store: ZooKeeperStore, other: Any, value: bytes
    ) -> None:
        other.create(f"{store.key('video:1')}/{new_token()}.0000000007", value, makepath=True)
        assert locks.acquire("video:1") is None
        assert holder("video:1").token is None
        assert locks.clear("video:1")
        assert taken("video:1").release()

    @pytest.mark.nightly
    def test_the_list_is_read_by_few_round_trips_and_two_reads_for_each(
        self, own_zookeeper_server: ZooKeeper, use_zookeeper: UseZooKeeper
    ) -> None:
        use_zookeeper(own_zookeeper_server.hosts)
        leases = [taken(f"video:{number}") for number in range(200)]

        def packets() -> int:
            return int(own_zookeeper_server.figures()["zk_packets_received"])

        before = packets()
        assert len(locks.list("video:")) == 200
        assert packets() - before <= 2 * 200 + 20
        before = packets()
        assert locks.list("audio:") == []
        assert packets() - before <= 20
        for lease in leases:
            lease.release()


class TestEnds:
    @pytest.mark.nightly
    def test_the_process_deletes_the_node_of_its_lease_that_is_over(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        taken("video:1", ttl=3.0)
        assert len(children(other, store.key("video:1"))) == 1
        until(lambda: children(other, store.key("video:1")) == [])

    @pytest.mark.nightly
    def test_it_does_so_at_once_and_then_forgets_it(
        self, use_zookeeper: UseZooKeeper, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread that does it would sleep for longer."""
        monkeypatch.setattr(link_module, "LONGEST_PAUSE_SECONDS", LONG)
        store = use_zookeeper(SESSION_TIMEOUT=LONG)
        store.get("video:1")
        time.sleep(0.5)
        taken("video:1", ttl=0.2)
        until(lambda: children(other, store.key("video:1")) == [], within=LONG / 2)
        leases = store._connection.link().leases
        until(lambda: leases.next_end(0.0) == math.inf)

    @pytest.mark.nightly
    def test_an_extended_lease_is_kept(self, store: ZooKeeperStore, other: Any) -> None:
        lease = taken("video:1", ttl=3.0)
        assert lease.extend(LONG)
        time.sleep(3.5)
        assert len(children(other, store.key("video:1"))) == 1
        assert lease.extend(0.2)
        until(lambda: children(other, store.key("video:1")) == [])

    @pytest.mark.nightly
    def test_a_lease_that_another_process_extends_is_kept(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        lease = taken("video:1", ttl=5.0)
        assert in_child(lambda: store.extend("video:1", lease.token, LONG)) is True
        time.sleep(5.5)
        assert holder("video:1").token == lease.token
        assert len(children(other, store.key("video:1"))) == 1

    def test_an_overdue_node_is_deleted_by_who_has_seen_it_for_its_ttl(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        """Not by the time that the server has written to it, which was long ago."""
        node = stuck(other, store.key("video:1"), new_token(), 3.0)
        time.sleep(3.5)
        seen = time.monotonic()
        assert locks.acquire("video:1") is None
        assert locks.get("video:1") is not None
        lease = taken("video:1", wait=PATIENCE)
        assert time.monotonic() - seen >= 3.0
        assert other.exists(node) is None
        assert lease.release()

    @pytest.mark.nightly
    def test_an_extension_is_a_new_sight(self, store: ZooKeeperStore, other: Any) -> None:
        node = stuck(other, store.key("video:1"), new_token(), 4.0)
        assert locks.acquire("video:1") is None
        time.sleep(1)
        data, _ = other.get(node)
        extended = time.monotonic()
        other.set(node, data)
        until(lambda: locks.acquire("video:1") is not None)
        assert time.monotonic() - extended >= 4.0

    @pytest.mark.nightly
    def test_what_is_left_of_somebodys_lease_is_shown(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        stuck(other, store.key("video:1"), new_token(), 60.0)
        time.sleep(0.5)
        # By the server's clock, of which a write tells.
        taken("video:2")
        assert 50 < (holder("video:1").ttl or 0) < 59.6


class TestLostReplies:
    @pytest.fixture
    def proxied(
        self, zookeeper_server: ZooKeeper, proxy_to: ProxyTo, use_zookeeper: UseZooKeeper
    ) -> tuple[ZooKeeperStore, Any]:
        proxy = proxy_to(zookeeper_server.port)
        store = use_zookeeper(f"127.0.0.1:{proxy.port}")
        store.get("video:1")
        return store, proxy

    def test_of_acquire(self, proxied: tuple[ZooKeeperStore, Any], other: Any) -> None:
        store, proxy = proxied
        assert taken("video:1").release()
        token = new_token()
        proxy.drop_reply(token.encode())
        grant = granted(store, token)
        proxy.wait_lost()
        (child,) = children(other, store.key("video:1"))
        assert other.exists(f"{store.key('video:1')}/{child}").czxid == grant.fence
        assert store.release("video:1", token, grant.proof)

    @pytest.mark.nightly
    def test_of_acquire_and_another_session_holds_it(
        self, proxied: tuple[ZooKeeperStore, Any], other: Any
    ) -> None:
        """The node that the lost reply was of is behind another one: it is removed."""
        store, _ = proxied
        assert taken("video:1").release()
        token, theirs = new_token(), new_token()
        node = stuck(other, store.key("video:1"), theirs, LONG)
        other.create(f"{store.key('video:1')}/{token}.", b"", ephemeral=True, sequence=True)
        answer = store.acquire("video:1", token, LONG, owner_record())
        assert isinstance(answer, Refusal)
        assert answer.holder.token == theirs
        assert [
            f"{store.key('video:1')}/{child}" for child in children(other, store.key("video:1"))
        ] == [node]

    @pytest.mark.nightly
    def test_of_extend(self, proxied: tuple[ZooKeeperStore, Any]) -> None:
        store, proxy = proxied
        token = new_token()
        granted(store, token)
        proxy.drop_reply(token.encode())
        assert store.extend("video:1", token, 5 * LONG)
        proxy.wait_lost()
        assert (holder("video:1").ttl or 0) > 4 * LONG
        assert store.extend("video:1", token, LONG)

    @pytest.mark.nightly
    def test_of_release(self, proxied: tuple[ZooKeeperStore, Any]) -> None:
        store, proxy = proxied
        token = new_token()
        granted(store, token)
        proxy.drop_reply(token.encode())
        assert store.release("video:1", token)
        proxy.wait_lost()
        assert not store.release("video:1", token)

    @pytest.mark.nightly
    def test_of_a_waiter_that_joins(self, proxied: tuple[ZooKeeperStore, Any], other: Any) -> None:
        store, proxy = proxied
        first, token = new_token(), new_token()
        granted(store, first)
        waiter = store.waiter("video:1", token, LONG, owner_record())
        proxy.drop_reply(token.encode())
        assert isinstance(waiter.ask(), Refusal)
        proxy.wait_lost()
        assert len(children(other, store.key("video:1"))) == 2
        assert store.release("video:1", first)
        until(lambda: isinstance(waiter.wait(0.1), Grant))


class TestProcesses:
    @pytest.mark.nightly
    def test_a_child_has_a_session_of_its_own(self, store: ZooKeeperStore) -> None:
        lease = taken("video:1")

        def child() -> list[bool]:
            refused = locks.acquire("video:1") is None
            return [refused, taken("video:2").held]

        assert in_child(child) == [True, True]
        assert lease.held
        assert lease.extend(LONG)
        assert lease.release()

    @pytest.mark.nightly
    def test_gevent_is_refused(self, store: ZooKeeperStore) -> None:
        program = (
            "from gevent import monkey\nmonkey.patch_all()\nimport django\ndjango.setup()\n"
            "from django_tasklock import InvalidLockConfig, locks\n"
            "try:\n    locks.acquire('video:1')\n"
            "except InvalidLockConfig as error:\n    print(error)\n"
        )
        assert "gevent or eventlet" in run_python(program)

    def test_a_process_that_ends_leaves_no_lock(self, store: ZooKeeperStore) -> None:
        """Without waiting for its session to time out, and although it has not released it."""
        store.takeover = False
        run_python("from django_tasklock import locks\nlease = locks.acquire('video:1', ttl=60)\n")
        assert taken("video:1").release()


@pytest.mark.nightly
class TestNotes:
    def test_notes_and_reservations_outlive_the_process(self, store: ZooKeeperStore) -> None:
        run_python(
            "from django_tasklock.stores import stores\n"
            "from django_tasklock.stores.base import Note\n"
            "stores['default'].set_note(Note('a note', 'started', 60))\n"
            "assert stores['default'].reserve('queued job', 'id-1', 60) is None\n"
        )
        assert store.get_note("a note") == "started"
        assert store.reserve("queued job", "id-2", 60) == "id-1"
        assert [each.key for each in store.reservations()] == ["queued job"]
        assert locks.list() == []

    def test_notes_that_are_over_do_not_pile_up(
        self, store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All on one shelf, of the 256 among which they are spread."""
        path = notes_module._path

        def on_one_shelf(z: Any, key: str) -> str:
            top, _, digest = path(z, key).rsplit("/", 2)
            return f"{top}/00/{digest}"

        monkeypatch.setattr(notes_module, "_path", on_one_shelf)
        store.set_note(Note("kept", "a", LONG))
        for number in range(500):
            store.set_note(Note(f"note {number}", "a", 0.001))
        # A quarter of them is left on average, and of 64 that are looked at all may be over.
        assert len(children(other, f"{store.options.prefix}/%notes/00")) < 350
        assert store.get_note("kept") == "a"


@pytest.mark.nightly
class TestRights:
    def test_without_the_rights_the_error_names_the_option(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        acl = [make_digest_acl("us", "secret", all=True)]
        other.create(store.options.prefix, acl=acl)
        with pytest.raises(StoreUnavailable, match="AUTH"):
            locks.acquire("video:1")
        with pytest.raises(StoreUnavailable, match="AUTH"):
            locks.list()

    def test_what_is_made_with_auth_is_closed_to_others(
        self, use_zookeeper: UseZooKeeper, other: Any
    ) -> None:
        store = use_zookeeper(AUTH=[["digest", "us:secret"]])
        lease = taken("video:1")
        assert lease.extend(LONG)
        assert locks.count() == 1
        other.add_auth("digest", "us:secret")
        acl, _ = other.get_acls(store.options.prefix)
        assert [each.id.scheme for each in acl] == ["digest"]
        use = {**zookeeper_store(store.options.hosts), "KEY_PREFIX": store.options.prefix}
        without = type(store)(_settings(use))
        with pytest.raises(StoreUnavailable, match="NoAuth"):
            without.acquire("video:1", new_token(), LONG, owner_record())
        assert lease.release()


def _settings(tasklock: dict[str, Any]) -> Any:
    from django_tasklock.conf import StoreSettings

    return StoreSettings("other", key_prefix=tasklock["KEY_PREFIX"], options=tasklock["OPTIONS"])


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({}, "HOSTS"),
            ({"HOSTS": ""}, "HOSTS"),
            ({"HOSTS": ["127.0.0.1"]}, "HOSTS"),
            ({"HOSTS": "127.0.0.1:port"}, "HOSTS"),
            ({"HOSTS": "h", "AUTH": "digest"}, "AUTH"),
            ({"HOSTS": "h", "AUTH": [("digest",)]}, "AUTH"),
            ({"HOSTS": "h", "SESSION_TIMEOUT": 0}, "SESSION_TIMEOUT"),
            ({"HOSTS": "h", "SESSION_TIMEOUT": "10"}, "SESSION_TIMEOUT"),
            ({"HOSTS": "h", "TIMEOUT": True}, "TIMEOUT"),
            ({"HOSTS": "h", "USE_SSL": "yes"}, "USE_SSL"),
            ({"HOSTS": "h", "CA": 5}, "CA"),
            ({"HOST": "h"}, "HOST"),
        ],
    )
    def test_wrong_options(self, use_caches: UseCaches, options: dict[str, Any], said: str) -> None:
        use_caches({}, {"default": zookeeper_store("h") | {"OPTIONS": options}})
        with pytest.raises(InvalidLockConfig, match=said):
            stores["default"]

    @pytest.mark.nightly
    @pytest.mark.parametrize("prefix", ["", "/", "a//b", "a/../b", ".", "zookeeper/x", "a\tb"])
    def test_wrong_prefixes(self, use_caches: UseCaches, prefix: str) -> None:
        use_caches({}, {"default": zookeeper_store("h") | {"KEY_PREFIX": prefix}})
        with pytest.raises(InvalidLockConfig, match="KEY_PREFIX"):
            stores["default"]

    @pytest.mark.nightly
    def test_a_password_is_not_shown(self, use_caches: UseCaches) -> None:
        use_caches({}, {"default": zookeeper_store("h", AUTH=[("digest", "us:secret", "")])})
        with pytest.raises(InvalidLockConfig) as caught:
            stores["default"]
        assert "secret" not in str(caught.value)

    @pytest.mark.nightly
    def test_a_path_of_several_nodes_and_a_chroot(
        self, use_caches: UseCaches, zookeeper_server: ZooKeeper, other: Any
    ) -> None:
        root = own_prefix()
        other.create(f"/{root}")
        hosts = f"{zookeeper_server.hosts}/{root}"
        use_caches({}, {"default": zookeeper_store(hosts) | {"KEY_PREFIX": "shop/locks"}})
        lease = taken("video:1")
        assert children(other, f"/{root}/shop/locks/video:1") != []
        waiter = Meanwhile(lambda: taken("video:1", wait=PATIENCE))
        until(lambda: waiting("video:1") == 1)
        assert [info.name for info in locks.list()] == ["video:1"]
        assert lease.release()
        assert waiter.result().release()

    @pytest.mark.nightly
    def test_a_session_timeout_that_the_server_does_not_grant_is_found(
        self, use_zookeeper: UseZooKeeper
    ) -> None:
        store = use_zookeeper(SESSION_TIMEOUT=0.1)
        (finding,) = store.check()
        assert finding.id == "session"
        assert "0.4" in finding.message
        assert list(use_zookeeper(SESSION_TIMEOUT=10).check()) == []
