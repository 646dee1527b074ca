"""A quorum whose members are asked without threads, and what may happen between two halves of a
call."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._compat import redis_halves
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import quorum as quorum_package
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Note, Refusal
from django_tasklock.stores.quorum import at_once
from django_tasklock.stores.quorum.at_once import Call
from django_tasklock.stores.quorum.crew import Crew
from django_tasklock.stores.quorum.polling import _Poll
from django_tasklock.stores.quorum.quorum_lease import QuorumLease
from django_tasklock.stores.redis import RedisStore, pool, quorum_member
from django_tasklock.stores.redis import begun as begun_module
from django_tasklock.stores.redis.connections import is_cut
from django_tasklock.stores.redis.leases import RELEASE
from tests.conftest import UseCaches, use_quorum
from tests.interruptions import EVERY, before_first, forget_handled
from tests.quorum import Five, quorum
from tests.servers import RedisServer
from tests.steps import LONG, Traffic, holder, taken
from tests.store_cases import members, quorum_store
from tests.stores.test_connections import Steps, cut_short
from tests.waiting import until

pytestmark = pytest.mark.nightly

ALIASES = "abcde"


noted: list[str] = []


class Noting(RedisStore):
    """One of a project's own."""

    def release_with_note(self, name: str, token: str, proof: Any, note: Note | None) -> bool:
        noted.append(name)
        return super().release_with_note(name, token, proof, note)


@pytest.fixture
def on_quorum(five_servers: list[RedisServer], use_caches: UseCaches) -> None:
    """Five servers that nothing harms, and connections that no other test uses."""
    urls = [f"{server.url}?client_name={new_token()}" for server in five_servers]
    caches, tasklock = members(urls)
    locmem = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    use_caches(locmem | caches, {"default": quorum_store()} | tasklock)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller reads all replies by itself, however busy the machine is."""
    monkeypatch.setattr(at_once, "READING_SECONDS", 60.0)
    monkeypatch.setattr(at_once, "READING_SHARE", 60.0)
    monkeypatch.setattr(at_once, "GRACE_SECONDS", 60.0)


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The members whose calls were handed over to a thread."""
    found: list[int] = []
    before = _Poll.hand_over

    def hand_over(self: Any, call: Call[Any]) -> None:
        found.append(call.member.number)
        before(self, call)

    monkeypatch.setattr(_Poll, "hand_over", hand_over)
    return found


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process stands for longer than the members' time, after the first answer that it reads.

    Returns:
        The members whose answers the caller has read.
    """
    found: list[int] = []
    before = _Poll.read

    def read(self: Any, call: Call[Any]) -> None:
        before(self, call)
        if not found:
            time.sleep(1.5 * quorum().options.member_timeout)
        found.append(call.member.number)

    monkeypatch.setattr(_Poll, "read", read)
    return found


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What threads of members were asked to do."""
    found: list[object] = []
    before = Crew.submit

    def submit(self: Crew, job: Any) -> bool:
        found.append(job)
        return before(self, job)

    monkeypatch.setattr(Crew, "submit", submit)
    return found


def connect() -> None:
    """Let each member have an idle connection, and its server the scripts."""
    for number, member in enumerate(quorum().members):
        token = new_token()
        answer = member.store.acquire_above(f"connect:{number}", token, LONG, owner_record(), 1)
        assert isinstance(answer, Grant)
        assert member.store.release(f"connect:{number}", token, answer.proof)


def living() -> list[int]:
    return [member.callers.living() for member in quorum().members]


def pool_of(number: int) -> Any:
    store: Any = quorum().members[number].store
    return store.client._connections


def idle_of(number: int) -> list[Any]:
    return [connection for connection, _ in pool_of(number)._idle]


def in_use(connections: Any) -> int:
    """How many belong to some call."""
    gc.collect()
    idle = [connection for connection, _ in connections._idle]
    made = [made() for made, private in list(connections._made.items()) if not private]
    return sum(each is not None and each not in idle for each in made)


def assert_nothing_unread() -> None:
    for number in range(5):
        assert not [connection for connection in idle_of(number) if is_cut(connection)]


def acquired(name: str, token: str | None = None) -> Grant:
    answer = quorum().acquire(name, token or new_token(), LONG, owner_record())
    assert isinstance(answer, Grant), answer
    return answer


class TestWithoutTrouble:
    def test_a_pair_wakes_no_thread_and_is_one_round_trip_for_each_member_and_verb(
        self,
        on_quorum: None,
        patient: None,
        jobs: list[object],
        five_servers: list[RedisServer],
    ) -> None:
        connect()
        traffic = [Traffic(server) for server in five_servers]
        idle = [idle_of(number) for number in range(5)]
        for _ in range(20):
            assert taken("video:1").release()
        assert [each.scripts() for each in traffic] == [40] * 5
        assert jobs == []
        assert living() == [0] * 5
        assert [set(idle_of(number)) for number in range(5)] == [set(each) for each in idle]
        assert_nothing_unread()

    def test_so_is_a_refusal(
        self, on_quorum: None, patient: None, jobs: list[object], five_servers: list[RedisServer]
    ) -> None:
        connect()
        lease = taken("video:1")
        traffic = [Traffic(server) for server in five_servers]
        assert isinstance(quorum().acquire("video:1", new_token(), LONG, {}), Refusal)
        assert [each.scripts() for each in traffic] == [1] * 5
        assert jobs == []
        assert lease.release()

    def test_the_first_call_makes_the_connections_in_threads(
        self, on_quorum: None, patient: None, jobs: list[object]
    ) -> None:
        lease = taken("video:1")
        assert len(jobs) == 5
        until(lambda: all(idle_of(number) for number in range(5)))
        until(lambda: len(lease._proof.proofs) == 5)
        assert lease.release()
        assert len(jobs) == 5

    def test_what_a_projects_own_store_overrides_is_called(
        self, five_servers: list[RedisServer], use_caches: UseCaches
    ) -> None:
        caches, tasklock = members([server.url for server in five_servers])
        own = {"BACKEND": f"{__name__}.Noting"}
        locmem = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
        tasklock = {alias: settings | own for alias, settings in tasklock.items()}
        use_caches(locmem | caches, {"default": quorum_store()} | tasklock)
        noted.clear()
        for calls in (5, 10):
            lease = taken("video:1")
            until(lambda lease=lease: len(lease._proof.proofs) == 5)  # type: ignore[misc]
            assert lease.release()
            # A member that still has this lease would refuse the next one.
            until(lambda calls=calls: len(noted) == calls)  # type: ignore[misc]
            until(lambda lease=lease: len(lease._proof.released) == 5)  # type: ignore[misc]

    def test_without_hiredis_threads_ask(
        self, on_quorum: None, jobs: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connect()
        monkeypatch.setattr(redis_halves, "hiredis", None)
        assert taken("video:1").release()
        assert len(jobs) == 10

    def test_greenlets_are_asked_in_threads(
        self, on_quorum: None, jobs: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connect()
        monkeypatch.setattr(at_once, "are_patched", lambda: True)
        assert taken("video:1").release()
        assert len(jobs) == 10

    def test_a_member_to_which_a_release_is_on_its_way_is_asked_in_a_thread(
        self, on_quorum: None, patient: None, jobs: list[object]
    ) -> None:
        connect()
        token = new_token()
        lease = quorum().lease_of("video:1", token)
        begun = lease.begin_release(3)
        grant = acquired("video:1", token)
        assert grant.proof is lease
        assert len(jobs) == 1
        lease.end_release(3, begun)
        until(lambda: 3 in lease.proofs)
        assert quorum().release("video:1", token, lease)

    def test_a_refusal_that_is_read_late_takes_no_later_vote_away(self, on_quorum: None) -> None:
        """Otherwise nobody would release that vote, if the lease is refused in the end."""
        store, token = quorum(), new_token()
        held = taken("video:1")
        grant = acquired("video:2", token)
        until(lambda: len(grant.proof.proofs) == 5)
        refusal = Refusal(holder("video:1"))
        for question, left in ((grant.proof.question - 1, 5), (grant.proof.question, 4)):
            store._voted(grant.proof, question, store.members[1], lambda: refusal)
            assert len(grant.proof.proofs) == left
        assert store.release("video:2", token, grant.proof)
        assert held.release()

    def test_a_release_is_not_sent_on_connections_that_were_cut(
        self, on_quorum: None, five_servers: list[RedisServer]
    ) -> None:
        """Their replies would be lost, and it would look as if it had released the lease."""
        connect()
        token, five = new_token(), Five(five_servers, [])
        grant = acquired("video:1", token)
        until(lambda: len(grant.proof.proofs) == 5)
        for number, member in enumerate(quorum().members):
            store: Any = member.store
            five.client(number).delete(store.key("video:1"))
        other = taken("video:1")
        until(lambda: len(other._proof.proofs) == 5)
        for number in range(5):
            five.client(number).client_kill_filter(_type="normal", skipme=True)
        until(lambda: all(is_cut(each) for number in range(5) for each in idle_of(number)))
        assert not quorum().release("video:1", token, grant.proof)
        assert five.having("video:1") == set(range(5))
        assert other.release()

    def test_a_lease_that_is_acquired_again_has_its_fence_everywhere(
        self, on_quorum: None, patient: None
    ) -> None:
        token = new_token()
        grant = acquired("video:1", token)
        again = acquired("video:1", token)
        assert again.proof is grant.proof
        assert grant.fence is not None
        assert again.fence is not None
        assert again.fence >= grant.fence
        assert quorum().release("video:1", token, grant.proof)


@pytest.mark.slow
class TestTrouble:
    @pytest.fixture(autouse=True)
    def _connected(self, five: Five) -> None:
        connect()

    def test_a_late_vote_is_kept(
        self, five: Five, use_caches: UseCaches, handed: list[int]
    ) -> None:
        # Who waits for all would wait until the client of the silent member has given up.
        use_quorum(five, use_caches, MEMBER_TIMEOUT=LONG)
        connect()
        five.harm("paused", 1)
        lease = taken("video:1")
        assert 1 in handed
        assert 1 not in lease._proof.proofs
        assert 1 not in lease._proof.unsure, "a majority is enough: its call goes on"
        five.mend("paused", 1)
        until(lambda: 1 in lease._proof.proofs)
        assert five.having("video:1") == set(range(5))
        assert lease.release()
        until(lambda: five.having("video:1") == set())

    def test_a_late_vote_for_a_lease_that_is_over_is_released(
        self, five: Five, handed: list[int]
    ) -> None:
        five.harm("paused", 1)
        lease = taken("video:1")
        assert lease.release()
        assert 1 in handed
        five.mend("paused", 1)
        until(lambda: five.having("video:1") == set())
        until(lambda: not quorum().members[1].owed)
        assert taken("video:1").release()

    def test_a_late_vote_gets_the_fence_that_the_others_have_agreed_on(
        self, five: Five, handed: list[int]
    ) -> None:
        """The clocks of the others are ahead. The next majority may count on this member."""
        for number in (0, 2, 3, 4):
            store: Any = quorum().members[number].store
            token = new_token()
            grant = store.acquire("other", token, LONG, owner_record())
            assert store.raise_fence("other", token, grant.fence + 10**10, grant.proof)
        five.harm("paused", 1)
        lease = taken("video:1")
        assert 1 in handed
        five.mend("paused", 1)
        until(lambda: 1 in lease._proof.proofs)

        def late() -> bool:
            held = quorum().members[1].store.get("video:1")
            return held is not None and held.fence == lease.fence

        until(late, "the fence of the others")
        assert lease.release()
        for number in (0, 2, 3, 4):
            assert quorum().members[number].store.clear("other")

    def test_a_late_release_is_finished(self, five: Five, handed: list[int]) -> None:
        lease = taken("video:1")
        until(lambda: len(lease._proof.proofs) == 5)
        five.harm("paused", 1)
        assert lease.release()
        assert 1 in handed
        proof = lease._proof
        five.mend("paused", 1)
        until(lambda: five.having("video:1") == set())
        until(lambda: proof.released == set(range(5)))
        assert not proof.is_releasing(1)

    def test_a_member_that_never_answers_is_unsure_and_owed_a_release(
        self, five: Five, handed: list[int]
    ) -> None:
        five.harm("paused", 1)
        lease = taken("video:1")
        proof = lease._proof
        assert 1 in handed
        until(lambda: 1 in proof.unsure, "its client gives up")
        assert lease.release()
        until(lambda: 1 in proof.owed)
        five.mend("paused", 1)
        until(lambda: five.having("video:1") == set())

    def test_a_member_that_dies_before_it_answers(self, five: Five, handed: list[int]) -> None:
        five.harm("paused", 1)
        lease = taken("video:1")
        proof = lease._proof
        assert 1 in handed
        five.harm("killed", 1)
        until(lambda: 1 in proof.unsure)
        assert lease.release()
        five.mend("killed", 1)
        assert taken("video:1").release()
        until(lambda: five.having("video:1") == set())

    @pytest.mark.parametrize("fault", ["killed", "cut off"])
    def test_connections_that_are_dead(self, five: Five, fault: str) -> None:
        for number in (0, 4):
            five.harm(fault, number)
        for _ in range(20):
            assert taken("video:1").release()
        lease = taken("video:1")
        for number in (0, 4):
            five.mend(fault, number)
        assert lease.release()
        until(lambda: five.having("video:1") == set())

    def test_servers_without_the_scripts(self, five: Five) -> None:
        for number in range(5):
            five.client(number).script_flush()
        lease = taken("video:1")
        until(lambda: len(lease._proof.proofs) == 5)
        for number in range(5):
            five.client(number).script_flush()
        assert lease.release()
        until(lambda: five.having("video:1") == set())

    def test_a_member_without_rights(self, five: Five, handed: list[int]) -> None:
        for number in (2, 3):
            five.client(number).execute_command("ACL", "SETUSER", "default", "-set")
        for _ in range(3):
            assert taken("video:1").release()
        assert {2, 3} <= set(handed)
        five.client(4).execute_command("ACL", "SETUSER", "default", "-set")
        with pytest.raises(StoreUnavailable, match=r"lacks a right: \+set"):
            locks.acquire("video:1", ttl=LONG)

    def test_a_release_whose_reply_is_lost(self, five: Five) -> None:
        lease = taken("video:1")
        until(lambda: len(lease._proof.proofs) == 5)
        proof = lease._proof
        for number in (0, 1, 2):
            five.proxies[number].drop_reply(to=RELEASE.sha)
        assert lease.release()
        assert five.having("video:1") == set()
        until(lambda: proof.released == set(range(5)))

    def test_three_that_hang_are_an_outage_in_bounded_time(self, five: Five) -> None:
        for number in (0, 2, 4):
            five.harm("paused", number)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="2 of its 5 members answered in time"):
            locks.acquire("video:1", ttl=LONG)
        elapsed = time.monotonic() - began
        assert quorum().options.member_timeout - 0.2 < elapsed < 5.0
        for number in (0, 2, 4):
            five.mend("paused", number)
        until(lambda: five.having("video:1") == set())

    def test_members_that_hang_while_the_caller_stands_are_an_outage(
        self, five: Five, standing: list[int]
    ) -> None:
        for number in (0, 2, 4):
            five.harm("paused", number)
        with pytest.raises(StoreUnavailable, match="2 of its 5 members answered in time"):
            locks.acquire("video:1", ttl=LONG)
        assert sorted(standing) == [1, 3]
        for number in (0, 2, 4):
            five.mend("paused", number)
        until(lambda: five.having("video:1") == set())

    def test_a_caller_that_stood_still_waits_for_the_others(
        self, five: Five, standing: list[int]
    ) -> None:
        """That it stood is no silence of the members."""
        for number in (0, 2, 4):
            five.harm("paused", number)

        def mend() -> None:
            until(lambda: standing)
            for number in (0, 2, 4):
                five.mend("paused", number)

        mending = threading.Thread(target=mend)
        mending.start()
        lease = taken("video:1")
        mending.join()
        assert lease.release()
        until(lambda: five.having("video:1") == set())

    def test_a_member_whose_threads_are_all_stuck(
        self, five: Five, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody reads the reply: what it may have granted is released later."""
        five.harm("paused", 1)
        (connection,) = idle_of(1)
        crew = quorum().members[1].callers
        with monkeypatch.context() as stuck:
            stuck.setattr(crew, "submit", lambda job: False)
            lease = taken("video:1")
        assert 1 in lease._proof.unsure
        assert connection._sock is None, "a reply may still come there"
        assert idle_of(1) == []
        assert lease.release()
        five.mend("paused", 1)
        until(lambda: five.having("video:1") == set())

    def test_a_signal_while_the_caller_waits(self, five: Five) -> None:
        class TimeIsUp(Exception):
            pass

        def interrupt(*_: object) -> None:
            raise TimeIsUp

        for proxy in five.proxies:
            proxy.latency = 0.02
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for moment in (0.005, 0.03, 0.045, 0.06, 0.075):
                signal.setitimer(signal.ITIMER_REAL, moment)
                try:
                    lease = locks.acquire("video:1", ttl=LONG)
                    assert lease is None or lease.release()
                    time.sleep(0.5)
                except TimeIsUp:
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        for proxy in five.proxies:
            proxy.latency = 0.0
        until(lambda: five.having("video:1") == set())
        until(lambda: [len(member.owed) for member in quorum().members] == [0] * 5)
        assert_nothing_unread()


INTERRUPTED = (
    redis_halves.__file__,
    begun_module.__file__,
    pool.__file__,
    quorum_member.__file__,
    os.path.dirname(quorum_package.__file__),
)
"""the code between whose steps an interruption comes"""


class QuorumSteps(Steps):
    @staticmethod
    def concerns(frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(INTERRUPTED)


@pytest.fixture
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_an_interruption_between_any_two_steps_leaves_nothing_behind(
    on_quorum: None, collected: None, five_servers: list[RedisServer]
) -> None:
    step, missed = before_first(), 0
    connect()
    own = [pool_of(number) for number in range(5)]
    five = Five(five_servers, [])
    name = f"video:{new_token()}"
    for alias in ALIASES:
        stores[alias].acquire("other", "o" * 22, LONG, owner_record())
    while missed < 3:
        step += EVERY
        connect()
        with cut_short(), QuorumSteps(step) as steps:
            lease = locks.acquire(name, ttl=LONG)
            if lease is not None:
                lease.release()
        lease = None
        forget_handled()
        missed = 0 if steps.passed >= step else missed + 1
        until(lambda: five.having(name) == set(), f"the end of the lease after step {step}")
        for alias in ALIASES:
            held = stores[alias].get("other")
            assert held is not None
            assert held.token == "o" * 22
    assert step > 100
    gc.collect()
    until(lambda: not any(member.callers._at_work for member in quorum().members))
    assert_nothing_unread()
    for connections in own:
        until(lambda own=connections: in_use(own) == 0)  # type: ignore[misc]
    for alias in ALIASES:
        assert stores[alias].release("other", "o" * 22)


def test_of_two_who_take_a_call_one_finishes_it() -> None:
    class Begun:
        def fileno(self) -> int:
            return 0

    lease = QuorumLease("video:1", "token")
    begun: Any = Begun()
    call: Call[bool] = Call(lease, begun, lambda read: read(), lambda: None)  # type: ignore[arg-type]
    assert call.is_open()
    assert call.take() is begun
    assert call.take() is None
    assert not call.give_up()
