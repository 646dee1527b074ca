"""What `ZooKeeperStore` adds to the contract: nodes, ends by the leader's clock, rights."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores.base import Note, Refusal
from django_tasklock.stores.records import FREE, Change, Held, digest_of
from django_tasklock.stores.zookeeper import ZooKeeperStore
from tests.agent import run_python
from tests.conftest import UseCaches
from tests.eager_task import assert_an_eager_task_locks_and_guards
from tests.inside import ZooKeeperNodes, before_zookeeper_is_asked, new_token, sweep_nodes
from tests.interruptions import interrupted_at_random
from tests.steps import LONG, holder, taken, unavailable
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
def store(use_zookeeper: Callable[..., ZooKeeperStore]) -> ZooKeeperStore:
    return use_zookeeper()


@pytest.fixture
def other(zookeeper_server: ZooKeeper) -> Iterator[Any]:
    """Somebody else's client of the same server."""
    with client_of(zookeeper_server.hosts) as client:
        yield client


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


def test_a_lease_is_a_persistent_node_of_the_locks_name(store: ZooKeeperStore, other: Any) -> None:
    # Given a lease, I expect its record to be in a node that outlives sessions
    lease, key = taken("video:1/é"), store.key("video:1/é")
    assert key == f"{store.prefix}/video:1%2F%C3%A9" == holder("video:1/é").key
    data, stat = other.get(key)
    assert json.loads(data)["token"] == lease.token
    assert stat.ephemeralOwner == 0
    assert lease.fence == stat.czxid

    # And a child to prove that it is this very one
    assert other.get_children(key) == [json.loads(data)["child"]]

    # And nothing to be left of it after its release
    assert lease.release()
    assert other.exists(key) is None


def test_every_name_is_a_node_of_its_own_and_other_nodes_are_no_locks() -> None:
    nodes = ZooKeeperNodes()
    for name in ("a/b", "..", ".", "a%2Fb", "%clock", "é锁", "n" * 200, "~", " note", " a b"):
        node = nodes.of(name)
        assert node.isascii()
        assert "/" not in node
        assert node not in (".", "..", nodes.CLOCK)
        assert nodes.name_of(node) == name
    for node in ("%clock", "%ff", "a b", "é", "a%2fb", "a%20b", "x" * 201, ""):
        assert nodes.name_of(node) is None


@pytest.mark.nightly
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_the_node_of_another_program_is_a_lock(
    store: ZooKeeperStore, other: Any, value: bytes
) -> None:
    other.create(store.key("video:1"), value, makepath=True)
    assert locks.acquire("video:1") is None
    (held,) = locks.list()
    assert (held.name, held.token, held.ttl, held.fence) == ("video:1", None, None, None)
    assert not locks.clear("video:1", digest="another value")
    assert locks.clear("video:1", digest=held.digest)
    assert taken("video:1").release()


@pytest.mark.nightly
def test_a_node_with_others_below_it_is_not_removed(store: ZooKeeperStore, other: Any) -> None:
    """As kazoo's own ``Lock`` makes one on that path."""
    assert other.Lock(store.key("video:1"), "somebody").acquire()
    assert locks.acquire("video:1") is None
    with pytest.raises(StoreUnavailable, match="nodes of another program below it"):
        locks.clear("video:1")


@pytest.mark.nightly
def test_now_and_then_one_process_removes_what_is_over(
    store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look removes nothing."""
    sweep_nodes(monkeypatch, chance=0.0)
    elsewhere(store, other, 0.01)
    until(lambda: not locks.is_locked("video:1"))
    assert locks.list() == []
    assert other.exists(store.key("video:1"))
    for number in range(20):
        store.set_note(Note(f"note {number}", "text", 0.01))
    until(lambda: not locks.is_locked("video:1"))
    sweep_nodes(monkeypatch, chance=1.0)
    kept = taken("kept")
    left = {ZooKeeperNodes().CLOCK, "%20sweeping", "kept"}
    until(lambda: {*other.get_children(store.prefix)} == left)
    assert kept.release()


def test_a_lease_ends_by_the_leaders_clock(store: ZooKeeperStore, other: Any) -> None:
    """This process has not seen it begin."""
    elsewhere(store, other, 1.5)
    made = other.exists(store.key("video:1"))
    assert locks.acquire("video:1") is None
    assert 0 < (holder("video:1").ttl or 0) <= 1.5
    lease = taken("video:1", wait=LONG)
    assert other.exists(store.key("video:1")).ctime - made.mtime > 1500
    assert (lease.fence or 0) > made.czxid


@pytest.mark.nightly
def test_a_clock_of_this_host_that_is_wrong_ends_nothing(store: ZooKeeperStore, other: Any) -> None:
    elsewhere(store, other, LONG)
    assert locks.acquire("video:1") is None
    store._link.own().heard -= ZooKeeperNodes().KNOWN_SECONDS - 1
    store._link.own().written += 3600_000
    assert locks.acquire("video:1") is None
    assert (holder("video:1").ttl or 0) > LONG / 2


@pytest.mark.parametrize(
    "verb", ["acquire", "release", "extend", "clear", "clear foreign", "sweep"]
)
def test_57_what_arrives_late_changes_nothing_of_the_next_lease(
    store: ZooKeeperStore, other: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A process stands still between its reading and its writing. Meanwhile the lock passes on, to
    a lease whose node has the same version."""
    late, path, foreign = ZooKeeperStore(store.settings), store.key("video:1"), b"somebody's"
    is_over = verb in ("acquire", "sweep")
    token = elsewhere(store, other, 0.01 if is_over else LONG)
    if is_over:
        until(lambda: not locks.is_locked("video:1"))
    if verb == "clear foreign":
        other.delete(path, recursive=True)
        other.create(path, foreign)
    following: list[str] = []

    def passes_on(call: Any, requests: Any) -> None:
        is_late = call.link is late._link.own() and any(path in request for request in requests)
        if not is_late or following:
            return
        if verb == "acquire":  # Its holder has extended it at the last moment.
            other.set(path, lease_of(token, LONG))
            following.append(token)
        else:
            other.delete(path, recursive=True)
            following.append(taken("video:1", ttl=LONG).token)

    before_zookeeper_is_asked(monkeypatch, "send", passes_on)
    if verb == "sweep":
        late._sweep()
    elif verb == "clear foreign":
        with pytest.raises(StoreUnavailable):
            late.clear("video:1", digest=digest_of(foreign))
    elif verb == "acquire":
        assert isinstance(late.acquire(["video:1"], new_token(), LONG, {}), Refusal)
    elif verb == "extend":
        assert not late.extend("video:1", token, 9 * LONG)
    else:
        assert not getattr(late, verb)("video:1", token)
    assert [holder("video:1").token] == following
    assert (holder("video:1").ttl or 0) <= LONG
    late.close_idle()


# Where the signal comes in the callback of a weak reference, Python can only say so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_call_that_is_interrupted_anywhere_leaves_the_client_usable(
    store: ZooKeeperStore,
) -> None:
    def put(name: str) -> Any:
        mine = {"token": new_token(), "at": time.time()}
        assert store.put([Change(name, FREE, mine, LONG)]).made
        return mine

    cut = interrupted_at_random(lambda number: put(f"video:{number}"), times=150, within=0.004)
    assert cut > 10
    mine = put("mine")
    (entry,) = store.get(["mine"])
    assert entry is not None
    assert entry.record == mine
    assert store.put([Change("mine", Held(mine["token"]), None)]).made


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("import sys\nsys.modules['kazoo'] = None\n", "django-tasklock[zookeeper]"),
        (
            "from gevent import monkey\nmonkey.patch_all()\nimport django\ndjango.setup()\n",
            "gevent or eventlet has patched this process",
        ),
    ],
    ids=["without kazoo", "gevent"],
)
def test_where_it_cannot_be_the_error_says_why(
    store: ZooKeeperStore, before: str, said: str
) -> None:
    program = (
        "from django_tasklock import InvalidLockConfig, locks\n"
        "try:\n    locks.acquire('video:1')\n"
        "except InvalidLockConfig as error:\n    print(error)\n"
    )
    assert said in run_python(before + program)


def test_a_task_locks_and_guards(store: ZooKeeperStore, transactional_db: None) -> None:
    assert_an_eager_task_locks_and_guards()


@pytest.mark.nightly
def test_without_the_rights_the_error_names_the_option(store: ZooKeeperStore, other: Any) -> None:
    other.create(store.prefix, acl=[make_digest_acl("us", "secret", all=True)])
    asks = (lambda: locks.acquire("video:1"), locks.list, lambda: list(store.check()))
    unavailable(*asks, says=r"NoAuth.*AUTH")


def test_a_path_that_may_only_be_read_is_found_by_the_check(
    store: ZooKeeperStore, other: Any
) -> None:
    assert list(store.check()) == []
    other.set_acls(store.prefix, [make_acl("world", "anyone", read=True)])
    assert locks.list() == []
    (finding,) = store.check()
    assert (finding.id, finding.serious) == ("write", True)
    assert re.search("no lock can be acquired: .*NoAuth", finding.message)


@pytest.mark.nightly
def test_what_is_made_with_auth_is_closed_to_others(
    use_zookeeper: Callable[..., ZooKeeperStore],
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


@pytest.mark.nightly
@pytest.mark.parametrize("there", [True, False])
def test_a_path_of_several_nodes_below_a_chroot(
    use_caches: UseCaches, zookeeper_server: ZooKeeper, other: Any, there: bool
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
