"""A quorum: what a majority of the members says, its fences, its findings."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.core.cache import caches

from django_tasklock import InvalidLockConfig, Lease, StoreUnavailable, lock, locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Extension, Grant, Note, Refusal
from django_tasklock.stores.quorum import QuorumStore
from django_tasklock.stores.records import FREE, Change, new_record
from tests.conftest import UseCaches
from tests.greenlets import BUSY, LIBRARIES, run_in_greenlets
from tests.inside import clock, new_token, owner_record
from tests.interruptions import Interrupt, signalled
from tests.quorum import LOCMEM, given_to, having, quorum, use_memory
from tests.servers import RedisServer
from tests.steps import LONG, holder, taken
from tests.store_cases import database_store, make_lease_table, members, quorum_store
from tests.stores.contract import WholeContract
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("in_memory")

OURS, THEIRS = "o" * 22, "t" * 22
Silent = Callable[[str], None]


@pytest.fixture
def in_memory(use_caches: UseCaches) -> None:
    """Five members in memory."""
    use_memory(use_caches)


@pytest.fixture
def on_redis(in_memory: None, five_servers: list[RedisServer], use_caches: UseCaches) -> None:
    """Five servers that nothing harms."""
    caches, tasklock = members([server.url for server in five_servers])
    use_caches({"default": LOCMEM} | caches, {"default": quorum_store()} | tasklock)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Silent:
    """``silent("ab")``: from now on these members do not answer."""

    def refuse(alias: str, *_: Any, **__: Any) -> Any:
        raise StoreUnavailable(alias, "cut off")

    def cut(aliases: str) -> None:
        for alias in aliases:
            for method in ("put", "get", "list", "check"):
                monkeypatch.setattr(stores[alias], method, partial(refuse, alias))

    return cut


def answer(name: str, token: str | None = None, ttl: float = LONG) -> Grant | Refusal:
    return quorum().acquire([name], token or new_token(), ttl, owner_record())


def refused_by(name: str) -> str | None:
    """The token of the lease that keeps a caller from a lock."""
    refusal = answer(name)
    assert isinstance(refusal, Refusal)
    return refusal.holder.token


def test_a_permit_that_a_majority_has_granted_stays_if_the_lock_itself_is_taken_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the members have agreed on its fence: that is no outage."""
    store = quorum()
    agree, gates = store._of_one_fence, list[Lease]()

    def agrees(vote: Any) -> Any:
        monkeypatch.undo()
        gates.append(taken("pool"))
        return agree(vote)

    monkeypatch.setattr(store, "_of_one_fence", agrees)
    permit = taken("pool", slots=2)
    assert holder("pool#1").fence == permit.fence
    assert locks.acquire("pool", slots=2) is None
    assert gates[0].release()


def test_what_a_minority_has_is_no_lock() -> None:
    # Given a lease at two members of five
    given_to("ab", "video:1", THEIRS)

    # I expect nobody to see it
    assert locks.get("video:1") is None
    assert (locks.list(), locks.count()) == ([], 0)

    # And the lock to be free
    lease = taken("video:1")
    assert [info.token for info in locks.list()] == [lease.token]
    assert (having("video:1"), locks.count()) == ("abcde", 1)

    # And its release to end that lease alone
    assert lease.release()
    assert having("video:1") == "ab"


def test_members_keep_a_lease_for_longer_than_its_holder() -> None:
    """By as much as their clocks may be too fast. What is shown is the holder's."""
    before = clock.now()
    assert isinstance(answer("video:1", ttl=100.0), Grant)
    passed = clock.now() - before
    for alias in "abcde":
        (entry,) = stores[alias].get(["video:1"])
        assert entry is not None
        assert 101.002 - passed - 0.01 < (entry.left or 0) <= 101.002
    assert 99.0 < (holder("video:1").ttl or 0) <= 100.0


def test_a_lock_is_held_until_fewer_than_a_majority_have_it() -> None:
    assert isinstance(answer("video:1", OURS), Grant)
    for alias, lasts in zip("abcde", (50.0, 10.0, 30.0, 20.0, 40.0), strict=True):
        assert stores[alias].extend("video:1", OURS, lasts)
    for ttl in (holder("video:1").ttl, locks.list()[0].ttl):
        assert 29.0 < (ttl or 0) < 30.0


def test_members_that_do_not_answer_may_have_it(silent: Silent) -> None:
    given_to("a", "video:1", THEIRS)
    silent("bc")
    assert holder("video:1").token == THEIRS
    assert [info.token for info in locks.list()] == [THEIRS]
    assert refused_by("video:1") == THEIRS
    assert having("video:1", "ade") == "a", "a refused caller leaves nothing behind"


def test_an_outage_leaves_nothing_behind_where_members_answer(silent: Silent) -> None:
    silent("cde")
    says = "2 of its 5 members answered, and 3 must agree; c: cut off; d: cut off; e: cut off"
    with pytest.raises(StoreUnavailable, match=says):
        answer("video:1")
    assert having("video:1", "ab") == ""


def test_a_lock_that_two_have_split_is_refused_and_one_of_them_named() -> None:
    """As two dead processes may leave it behind."""
    given_to("ab", "video:1", OURS)
    given_to("cd", "video:1", THEIRS)
    assert locks.get("video:1") is None
    assert refused_by("video:1") in (OURS, THEIRS)
    assert having("video:1") == "abcd"
    assert not locks.clear("video:1", token=THEIRS), "it was not held"
    assert having("video:1") == "ab", "but nothing of it is left"
    assert taken("video:1").release()


def test_whether_a_lease_is_lost_is_not_known_while_it_may_have_a_majority(silent: Silent) -> None:
    """Two have it, two do not, and the fifth does not answer. Other leases are extended."""
    split, whole = taken("video:1"), taken("video:2")
    for alias in "cd":
        assert stores[alias].clear("video:1")
    silent("e")
    batch = [Extension(each.name, each.token, LONG) for each in (split, whole)]
    assert quorum().extend_many(batch) == [None, True]
    with pytest.raises(StoreUnavailable, match=r"4 of its 5 members answered, .*; e: cut off"):
        split.extend()
    assert split.held
    assert stores["b"].clear("video:1")
    assert quorum().extend_many(batch) == [False, True]


def test_what_a_majority_may_have_had_is_released(silent: Silent) -> None:
    """One has removed it, two have lost it, and two do not answer."""
    lease = taken("video:1")
    for alias in "cd":
        assert stores[alias].clear("video:1")
    silent("ab")
    assert quorum().release("video:1", lease.token)
    assert not quorum().release("video:1", lease.token)


def test_an_extension_gives_the_lease_again_to_members_that_have_lost_it() -> None:
    lease = taken("video:1")
    for alias in "ae":
        assert stores[alias].clear("video:1")
    given_to("e", "video:1", THEIRS)
    assert lease.extend()
    again, other = (stores[alias].find("video:1") for alias in "ae")
    assert again is not None
    assert other is not None
    assert again.token == lease.token
    assert (again.fence or 0) >= (lease.fence or 0)
    assert holder("video:1").fence == lease.fence
    assert other.token == THEIRS


def test_an_extension_gives_nothing_again_that_was_released_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease, give_again = taken("video:1"), quorum()._give_again

    def overtaken(*extended: Any) -> None:
        monkeypatch.setattr(quorum(), "_give_again", give_again)
        assert quorum().release("video:1", lease.token)
        give_again(*extended)

    monkeypatch.setattr(quorum(), "_give_again", overtaken)
    assert stores["a"].clear("video:1")
    assert quorum().extend("video:1", lease.token, LONG)
    assert having("video:1") == ""


@pytest.mark.parametrize("where", ["in_memory", "on_redis"])
def test_what_is_reserved_already_is_not_taken_back_in_an_outage(
    request: pytest.FixtureRequest, silent: Silent, where: str
) -> None:
    """As by a message that is sent again. What is new is taken back."""
    request.getfixturevalue(where)
    store, note = quorum(), Note("started 1", "run 1", LONG)
    for _ in range(2):
        assert store.reserve("queued job", "1", LONG) is None
    store.set_note(note)
    silent("cde")
    for key, text in (("queued job", "1"), ("queued other", "2")):
        with pytest.raises(StoreUnavailable):
            store.reserve(key, text, LONG)
    with pytest.raises(StoreUnavailable):
        store.acquire(["video:1"], new_token(), LONG, owner_record(), note)
    left = [stores["a"].get_note(key) for key in ("queued job", "queued other", "started 1")]
    assert left == ["1", None, "run 1"]


def test_a_note_needs_a_majority_too(silent: Silent) -> None:
    assert quorum().reserve("queued job", "1", LONG) is None
    assert quorum().reserve("queued job", "2", LONG) == "1"
    assert (locks.list(), locks.count()) == ([], 0)
    assert [each.text for each in quorum().reservations()] == ["1"]
    stores["a"].unreserve("queued job", "1")
    silent("bc")
    assert quorum().get_note("queued job") == "1"
    silent("d")
    with pytest.raises(StoreUnavailable):
        quorum().get_note("queued job")


def test_an_interrupted_call_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a soft time limit, while the members are at it."""

    def slowly(put: Callable[..., Any], *args: Any) -> Any:
        time.sleep(0.3)
        return put(*args)

    quorum()
    for alias in "abcde":
        monkeypatch.setattr(stores[alias], "put", partial(slowly, stores[alias].put))
    with pytest.raises(Interrupt), signalled(Interrupt(), 0.1):
        locks.acquire("video:1", ttl=LONG)
    until(lambda: having("video:1") == "")


def test_its_threads_end_with_it() -> None:
    """Also those that a call has started after `close_idle`: the last one, of a thread that looks
    after leases, may come then."""
    before = {*threading.enumerate()}
    store = QuorumStore(stores.settings["default"])
    for _ in range(2):
        assert isinstance(store.acquire(["video:1"], OURS, LONG, owner_record()), Grant)
        assert store.release("video:1", OURS)
        store.close_idle()
    assert not store.release("video:1", OURS)
    assert [each for each in threading.enumerate() if each not in before]

    def ended() -> bool:
        gc.collect()
        return not [each for each in threading.enumerate() if each not in before]

    del store
    until(ended, "the end of its threads")


def test_findings_name_the_members(silent: Silent) -> None:
    silent("c")
    found = {each.id: each for each in quorum().check()}
    assert {"member_down", "restarts", "memory"} == {*found}
    assert found["member_down"].message == "its member 'c' does not answer: cut off"
    assert found["memory"].message.startswith("its member 'e': it keeps its locks in memory")
    silent("ab")
    with pytest.raises(StoreUnavailable, match="2 of its 5 members answered, and 3 must"):
        list(quorum().check())


@pytest.mark.parametrize("flag", ["atomic_release", "fences_are_times"])
def test_a_member_that_lacks_what_a_quorum_needs_is_refused(
    monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setattr(type(stores["a"]), flag, False)
    with pytest.raises(InvalidLockConfig, match="cannot have the member 'a': a MemoryStore"):
        quorum()


def test_a_lease_that_is_longer_than_a_member_waits_is_refused(use_caches: UseCaches) -> None:
    use_memory(use_caches, LONGEST_TTL=100.0)
    lease = taken("video:1", ttl=100)
    for verb in (partial(locks.acquire, "video:2"), lease.extend, lease.detach):
        with pytest.raises(
            ValueError, match=r"ttl must be at most 100 s \(LONGEST_TTL of .*'default'\), not 101 s"
        ):
            verb(ttl=101)
    with (
        pytest.raises(InvalidLockConfig, match=r"cooldowns must be at most 100 s .*not 101 s"),
        lock("video:2", cooldown=101),
    ):
        pass
    quorum().set_note(Note("key", "text", 101))  # A note excludes nobody.
    assert lease.release()


class TestOnRedis:
    pytestmark = pytest.mark.usefixtures("on_redis")

    def test_they_grow_though_the_member_with_the_greatest_is_gone(self, silent: Silent) -> None:
        """Fences; the clock of one member is an hour ahead of all others."""
        ahead = time.time_ns() // 1000 + 3600 * 1_000_000
        change = Change("video:1", FREE, new_record(OURS, owner_record()), LONG)
        assert stores["a"].put([change], ahead).made
        assert stores["a"].clear("video:1")
        first = taken("video:1")
        assert (first.fence or 0) > ahead
        assert holder("video:1").fence == first.fence
        assert first.release()
        silent("ab")
        second = taken("video:1")
        assert (second.fence or 0) > (first.fence or 0)
        assert second.release()

    def test_keys_of_other_code_are_locks_if_a_majority_has_them(self) -> None:
        for alias in "ab":
            caches[alias].add("lock:video:9", "locked", LONG)
        assert locks.get("video:9") is None
        caches["c"].add("lock:video:9", "locked", LONG)
        info = holder("video:9")
        assert (info.token, info.owner.host) == (None, None)
        assert locks.acquire("video:9") is None
        assert quorum().clear("video:9", digest="0" * 32) is False
        assert quorum().clear("video:9", digest=info.digest) is True
        assert taken("video:9").release()

    @pytest.mark.nightly
    @pytest.mark.slow
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_a_greenlet_that_computes_keeps_its_lease(self, library: str) -> None:
        assert run_in_greenlets(BUSY, library) == ["waited"]


@pytest.mark.nightly
class TestOtherMembers(WholeContract):
    """Two servers and a database: the whole contract."""

    @pytest.fixture(autouse=True)
    def _mixed(
        self, five_servers: list[RedisServer], use_caches: UseCaches, sqlite_alias: str
    ) -> None:
        make_lease_table(sqlite_alias)
        caches, tasklock = members([server.url for server in five_servers[:2]])
        tasklock |= {"c": database_store(sqlite_alias)}
        # No member is harmed: one that takes long has to wait for the processor.
        tasklock |= {"default": quorum_store("abc", TIMEOUT=10.0)}
        use_caches({"default": LOCMEM} | caches, tasklock)

    def make_store(self) -> BaseStore:
        return stores["default"]
