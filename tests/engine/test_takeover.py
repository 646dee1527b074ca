"""Takeover: a lock whose owner ran on this machine and is gone is taken at once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from django_tasklock import locks, signals
from django_tasklock._engine.waiting import LATER_OWNER_CHECK_SECONDS, MOST_AHEAD, Attempt
from django_tasklock._values import clock
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Refusal
from tests import needs
from tests.agent import Agent, environment, run_python
from tests.conftest import UseCaches, UseRedis
from tests.steps import LONG, Meanwhile, holder, in_child, sent, taken, waiting
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="knows processes by /proc")


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def gone() -> dict[str, Any]:
    """The record of a process that has ended."""
    record: dict[str, Any] = in_child(owner_record)
    return record


def held_by(record: dict[str, Any], name: str = "video:1") -> str:
    """A lease of LONG seconds that some other process took."""
    token = new_token()
    assert isinstance(stores["default"].acquire(name, token, LONG, record), Grant)
    return token


class TestDeadOwner:
    def test_lock_of_a_killed_process_is_taken_at_once(self) -> None:
        with Agent() as agent:
            first = agent.ask("acquire", name="video:1", ttl=LONG)
            assert locks.acquire("video:1") is None
            agent.kill()
        assert holder("video:1").owner.alive() is False
        with sent(signals.lock_cleared) as cleared:
            lease = taken("video:1")
        assert lease.fence is not None
        assert lease.fence > first["fence"]
        (told,) = cleared
        assert (told["name"], told["token"]) == ("video:1", first["token"])
        assert "takeover" in told["by"]
        assert told["holder"].owner.pid == agent.pid

    def test_who_is_not_the_next_notices_the_death_if_the_next_has_died_too(self) -> None:
        """Nobody tells it that it is the next by now: it looks now and then."""
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            store: Any = stores["default"]
            dead = store.waiter("video:1", new_token(), LONG, owner_record())
            assert isinstance(dead.ask(), Refusal)
            dead.drop()
            waiter = Meanwhile(lambda: taken("video:1", wait=LONG))
            until(lambda: waiting("video:1") == 2)
            agent.kill()
            killed = time.monotonic()
            waiter.result()
        assert time.monotonic() - killed < LONG / 4, "it would ask anyway after 30 s"

    def test_the_further_back_the_less_often_a_waiter_looks(self) -> None:
        """Of a long queue each would ask again each second or two, after every holder's end."""
        store: Any = stores["default"]
        held_by(owner_record())
        pauses = []
        for _ in range(MOST_AHEAD + 3):
            waiter = store.waiter("video:1", new_token(), LONG, owner_record())
            refusal = waiter.ask()
            attempt = Attempt(
                store, "video:1", new_token(), LONG, owner_record(), None, lambda *_: False
            )
            looks = attempt._until_over(waiter, refusal.holder, clock.now() + LONG)
            pauses.append(next(looks))
            looks.close()
        first, *others = pauses
        assert first.holder is not None, "it looks at once, every 50 ms"
        for ahead, pause in enumerate(others, 1):
            most = LATER_OWNER_CHECK_SECONDS * min(ahead, MOST_AHEAD)
            assert most / 2 <= pause.seconds <= most
            assert pause.holder is None

    def test_on_a_plain_cache_as_well(self, use_caches: UseCaches, gone: dict[str, Any]) -> None:
        backend = "django.core.cache.backends.locmem.LocMemCache"
        use_caches({"default": {"BACKEND": backend, "LOCATION": secrets.token_hex(4)}})
        held_by(gone)
        assert taken("video:1").held

    def test_who_waits_already_notices_the_death(self) -> None:
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            waiter = Meanwhile(lambda: taken("video:1", wait=LONG))
            until(lambda: waiting("video:1") == 1)
            agent.kill()
            killed = time.monotonic()
            waiter.result()
        assert time.monotonic() - killed < LONG / 2, "of a lease of 60 s"

    def test_of_many_who_take_over_one_gets_it(self, gone: dict[str, Any]) -> None:
        for _ in range(5):
            held_by(gone)
            attempts = [Meanwhile(lambda: locks.acquire("video:1", ttl=LONG)) for _ in range(6)]
            leases = [lease for attempt in attempts if (lease := attempt.result())]
            assert len(leases) == 1
            assert leases[0].held
            assert leases[0].release()

    def test_who_waits_gives_up_after_no_number_of_deaths(
        self, gone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each time that the lock of a dead owner is cleared, another one takes it, and dies."""
        store, deaths = stores["default"], iter(range(300))
        clear = store.clear

        def clear_and_die(name: str, token: str | None = None) -> bool:
            cleared = clear(name, token)
            if cleared and next(deaths, None) is not None:
                store.acquire(name, new_token(), LONG, gone)  # Refused, once the waiter has it.
            return cleared

        monkeypatch.setattr(store, "clear", clear_and_die)
        held_by(gone)
        assert locks.acquire("video:1") is None, "it does not wait, and ends"
        assert taken("video:1", wait=None).held

    def test_zombie_is_dead(self) -> None:
        """A process whose parent has not asked for its exit code yet."""
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            os.kill(agent.pid, signal.SIGKILL)
            os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
            assert os.path.exists(f"/proc/{agent.pid}")
            assert taken("video:1").held

    def test_pid_that_was_given_out_again_is_not_the_owner(self) -> None:
        """Our own pid, of a process that started at another time."""
        held_by({**owner_record(), "start": owner_record()["start"] - 1})
        assert taken("video:1").held

    def test_the_wait_queue_comes_before_who_takes_over(self, gone: dict[str, Any]) -> None:
        """The lock of a dead owner is handed over as by a release."""
        held_by(gone)
        token = new_token()
        line = stores["default"].waiter("video:1", token, LONG, owner_record())
        assert line is not None
        assert isinstance(line.ask(), Refusal)
        assert locks.acquire("video:1") is None
        assert holder("video:1").token == token
        assert line.wait(PATIENCE) is not None


class TestGroup:
    """An owner whose work may go on in a process group, as that of ``locks run``."""

    def test_owner_lives_while_a_process_of_its_group_does(self, gone: dict[str, Any]) -> None:
        with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
            held_by({**gone, "group": process.pid})
            try:
                assert holder("video:1").owner.alive() is True
                assert locks.acquire("video:1") is None
            finally:
                process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            # A zombie, of which nobody has asked for its exit code yet, is no life.
            assert holder("video:1").owner.alive() is False
            assert taken("video:1").held

    def test_who_leads_a_group_lives_when_the_group_does_not(self) -> None:
        owner = Owner.from_record({**owner_record(), "group": 2**22 + 1})
        assert owner.alive() is True

    @pytest.mark.parametrize("group", [-1, -5, 10**30, "7", 7.5, [1], {}])
    def test_group_that_is_none_is_not_known_or_not_there(
        self, gone: dict[str, Any], group: object
    ) -> None:
        assert not Owner.from_record({**gone, "group": group}).alive()


class TestLivingOwner:
    def test_stopped_process_is_alive(self) -> None:
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            agent.stop()
            assert holder("video:1").owner.alive() is True
            assert locks.acquire("video:1", wait=0.2) is None

    def test_process_whose_first_thread_has_ended_is_alive(self) -> None:
        """It shows as a zombie, and works on."""
        program = (
            "import ctypes, threading, time\n"
            "def work():\n"
            "    print('works', flush=True)\n"
            "    time.sleep(60)\n"
            "threading.Thread(target=work).start()\n"
            "ctypes.CDLL(None).syscall(60, 0)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"works\n"
            stat = f"/proc/{process.pid}/stat"

            def state() -> str:
                with open(stat, encoding="ascii") as file:
                    return file.read().rpartition(")")[2].split()[0]

            try:
                until(lambda: state() == "Z")
                with open(stat, encoding="ascii") as file:
                    start = int(file.read().rpartition(")")[2].split()[19])
                owner = Owner.from_record(owner_record() | {"pid": process.pid, "start": start})
                assert owner.alive() is True
            finally:
                process.kill()

    @pytest.mark.parametrize(
        "elsewhere",
        [
            {"boot": "another-machine"},
            {"pidns": "pid:[1]"},
            {"boot": None},
            {"pidns": None},
            {"start": None},
            {"pid": None},
        ],
        ids=str,
    )
    def test_owner_elsewhere_is_never_taken_over(
        self, gone: dict[str, Any], elsewhere: dict[str, Any]
    ) -> None:
        held_by(gone | elsewhere)
        assert holder("video:1").owner.alive() is None
        assert locks.acquire("video:1", wait=0.2) is None

    def test_owner_of_whom_nothing_can_be_known_is_alive(self) -> None:
        """A process without a free file descriptor cannot look, and takes nothing for dead."""
        taken("video:1")
        program = (
            "import os, resource\n"
            "from django_tasklock import locks\n"
            "locks.acquire('warm', ttl=60).release()\n"
            "assert locks.acquire('video:1') is None\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 64))\n"
            "print(locks.acquire('video:1', ttl=60))\n"
        )
        assert run_python(program).split() == ["None"]

    def test_owner_of_another_user_behind_a_hidden_proc_is_alive(self) -> None:
        """With hidepid, /proc shows a user their own processes only."""
        said = in_namespaces(
            "unshare --mount",
            "mount -t proc -o hidepid=2 proc /proc",
            # Who becomes somebody else by itself needs no interpreter that they may read, as long
            # as all is imported before.
            "owner_record()\n"
            "if child := os.fork():\n"
            "    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
            "os.setgroups([])\n"
            "os.setresgid(65534, 65534, 65534)\n"
            "os.setresuid(65534, 65534, 65534)\n"
            f"living = {os.getpid()}\n"
            "assert not os.path.exists(f'/proc/{living}')\n",
        )
        assert said == ["None", "False"]

    def test_proc_of_another_pid_namespace_tells_nothing(self) -> None:
        said = in_namespaces("unshare --pid --fork", "true", "living = os.getpid()\n")
        assert said == ["None", "None"]


def in_namespaces(unshare: str, before: str, whose: str) -> list[str]:
    """What such a process says of two others: one that lives and one that is dead."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only Linux has namespaces, and only root may make them")
    program = (
        "import os\n"
        "from django_tasklock._values.owner import Owner\n"
        "from django_tasklock._values.owner_record import owner_record\n"
        f"{whose}"
        "dead = os.fork() or os._exit(0)\n"
        "os.waitpid(dead, 0)\n"
        "for pid in (living, dead):\n"
        "    print(Owner.from_record({**owner_record(), 'pid': pid, 'start': 1}).alive())\n"
    )
    prepare = f"{unshare} sh -c '{before}'"
    possible = subprocess.run(prepare, shell=True, capture_output=True, text=True, check=False)
    if possible.returncode != 0:
        needs.missing(f"no such namespaces here: {possible.stderr.strip()}")
    done = subprocess.run(
        [*unshare.split(), "sh", "-c", f'{before} && exec {sys.executable} -c "$PROGRAM"'],
        env=environment(PROGRAM=program),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


class TestTakeoverOff:
    def test_dead_owners_lock_stands_until_it_ends(
        self, use_redis: UseRedis, gone: dict[str, Any]
    ) -> None:
        use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
        token = held_by(gone)
        assert locks.acquire("video:1") is None
        assert locks.acquire("video:1", wait=0.3) is None
        assert holder("video:1").token == token

    def test_waiter_takes_it_when_it_ends(self, use_redis: UseRedis, gone: dict[str, Any]) -> None:
        use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
        began = time.monotonic()
        assert isinstance(stores["default"].acquire("video:1", new_token(), 0.4, gone), Grant)
        assert taken("video:1", wait=LONG).held
        assert 0.4 <= time.monotonic() - began < LONG / 2


def test_owner_reads_well() -> None:
    assert str(Owner()) == "an unknown owner"
    assert str(Owner("web-1", 7)) == "pid 7 on web-1"
    assert str(Owner("web-1", 7, "videos.process", "id-1")) == (
        "pid 7 on web-1, task videos.process[id-1]"
    )
    assert str(Owner("web-1", 7, "locks run sh")) == "pid 7 on web-1, task locks run sh"


def test_owner_is_built_once_a_process_and_anew_in_a_child() -> None:
    ours = owner_record()
    theirs = in_child(owner_record)
    assert theirs["pid"] != ours["pid"]
    assert theirs["host"] == ours["host"]
    assert (theirs["boot"], theirs["pidns"]) == (ours["boot"], ours["pidns"])
    assert Owner.from_record(theirs).alive() is False


def test_a_lease_that_goes_on_in_another_process_is_not_that_of_the_dead_one() -> None:
    """It was adopted after the refusal that named its owner, and has the same token."""
    lease = taken("video:1")
    now = holder("video:1")
    refused = replace(now, owner=replace(now.owner, start=1))
    assert refused.owner.alive() is False
    assert locks._take_over(stores["default"], refused), "it asks again"
    assert holder("video:1").token == lease.token
    assert lease.release()
