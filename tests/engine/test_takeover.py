"""Takeover: a lock whose owner ran on this machine and is gone is taken at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from django_tasklock import locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.base import Refusal
from tests import needs
from tests.agent import Agent, environment, run_python
from tests.inside import Owner, new_token, owner_record
from tests.steps import LONG, Meanwhile, held_by, holder, in_child, sent, taken, waiter
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="knows processes by /proc"),
    pytest.mark.usefixtures("on_redis"),
]


@pytest.fixture
def gone() -> dict[str, Any]:
    """The record of a process that has ended."""
    record: dict[str, Any] = in_child(owner_record)
    return record


class TestDeadOwner:
    def test_lock_of_a_killed_process_is_taken_at_once(self) -> None:
        with Agent() as agent:
            first = agent.ask("acquire", name="video:1", ttl=LONG)
            assert locks.acquire("video:1") is None
            agent.process.kill()
            # A zombie is dead: a process whose parent has not asked for its exit code yet.
            os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
            assert os.path.exists(f"/proc/{agent.pid}")
            assert holder("video:1").owner.alive() is False
            with sent(signals.lock_cleared) as cleared:
                lease = taken("video:1")
        assert lease.fence is not None
        assert lease.fence > first["fence"]
        (told,) = cleared
        assert (told["name"], told["token"]) == ("video:1", first["token"])
        assert "takeover" in told["by"]
        assert told["holder"].owner.pid == agent.pid

    def test_who_waits_already_notices_the_death(self) -> None:
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            thread = waiter("video:1", 1)
            agent.kill()
            killed = time.monotonic()
            thread.result()
        assert time.monotonic() - killed < LONG / 4, "of a lease of 60 s"

    def test_who_is_not_the_next_notices_the_death_if_the_next_has_died_too(self) -> None:
        """Nobody tells it that it is the next by now: it looks now and then."""
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            store: Any = stores["default"]
            dead = store.waiter("video:1", new_token(), LONG, owner_record())
            assert isinstance(dead.ask(), Refusal)
            dead.drop()
            thread = waiter("video:1", 2)
            agent.kill()
            killed = time.monotonic()
            thread.result()
        assert time.monotonic() - killed < LONG / 4, "it would ask anyway after 30 s"

    def test_on_a_plain_cache_as_well(self, gone: dict[str, Any], on_locmem: None) -> None:
        held_by(gone, "video:1")
        assert taken("video:1").held

    def test_of_many_who_take_over_one_gets_it(self, gone: dict[str, Any]) -> None:
        for _ in range(5):
            held_by(gone, "video:1")
            attempts = [Meanwhile(lambda: locks.acquire("video:1", ttl=LONG)) for _ in range(6)]
            (lease,) = [lease for attempt in attempts if (lease := attempt.result())]
            assert lease.release()

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
        held_by(gone, "video:1")
        assert locks.acquire("video:1") is None, "it does not wait, and ends"
        assert taken("video:1", wait=None).held

    def test_pid_that_was_given_out_again_is_not_the_owner(self) -> None:
        """Our own pid, of a process that started at another time."""
        held_by({**owner_record(), "start": owner_record()["start"] - 1}, "video:1")
        assert taken("video:1").held

    def test_a_lease_that_goes_on_in_another_process_is_not_that_of_the_dead_one(
        self, gone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is adopted after the refusal that named its owner, and has the same token."""
        token, store = held_by(gone, "video:1"), stores["default"]
        get = store.get

        def adopted_meanwhile(name: str) -> Any:
            store.rewrite(name, token, LONG, owner_record())
            return get(name)

        monkeypatch.setattr(store, "get", adopted_meanwhile)
        assert locks.acquire("video:1") is None
        assert holder("video:1").token == token


class TestGroup:
    """An owner whose work may go on in a process group, as that of ``locks run``."""

    def test_owner_lives_while_a_process_of_its_group_does(self, gone: dict[str, Any]) -> None:
        with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
            held_by({**gone, "group": process.pid}, "video:1")
            try:
                assert locks.acquire("video:1") is None
            finally:
                process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            # A zombie, of which nobody has asked for its exit code yet, is no life.
            assert taken("video:1").held

    def test_group_that_is_none_is_not_known_or_not_there(self, gone: dict[str, Any]) -> None:
        assert Owner.from_record({**owner_record(), "group": 2**22 + 1}).alive() is True
        for group in (-1, 10**30, "7", 7.5, [1]):
            assert not Owner.from_record({**gone, "group": group}).alive()


class TestLivingOwner:
    def test_stopped_process_is_alive(self) -> None:
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            agent.stop()
            assert holder("video:1").owner.alive() is True
            assert locks.acquire("video:1", wait=0.2) is None

    @pytest.mark.parametrize(
        "there",
        [{"boot": "another-machine"}, {"pidns": "pid:[1]"},
         {"boot": None}, {"pidns": None}, {"start": None}, {"pid": None}],
        ids=str,
    )  # fmt: skip
    def test_owner_elsewhere_is_never_taken_over(
        self, gone: dict[str, Any], there: dict[str, Any]
    ) -> None:
        held_by(gone | there, "video:1")
        assert holder("video:1").owner.alive() is None
        assert locks.acquire("video:1", wait=0.2) is None

    def test_process_whose_first_thread_has_ended_is_alive(self) -> None:
        """It shows as a zombie, and works on."""
        program = (
            "import ctypes, threading, time\n"
            "from django_tasklock import locks\n"
            "locks.acquire('video:1', ttl=60)\n"
            "def work():\n"
            "    print('works', flush=True)\n"
            "    time.sleep(60)\n"
            "threading.Thread(target=work).start()\n"
            "ctypes.CDLL(None).syscall(60, 0)\n"
        )
        command = [sys.executable, "-c", f"import django\ndjango.setup()\n{program}"]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"works\n"

            def state() -> str:
                with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
                    return file.read().rpartition(")")[2].split()[0]

            try:
                until(lambda: state() == "Z")
                assert holder("video:1").owner.alive() is True
            finally:
                process.kill()

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
        if os.geteuid() != 0:
            pytest.skip("only root may mount another /proc")
        mount = "mount -t proc -o hidepid=2 proc /proc"
        possible = subprocess.run(["unshare", "--mount", "sh", "-c", mount], check=False)
        if possible.returncode != 0:
            needs.missing("no /proc may be mounted here")
        program = (
            # Who becomes somebody else by itself needs no interpreter that they may read, as long
            # as all is imported before.
            "import os, django\n"
            "django.setup()\n"
            "from tests.inside import Owner, owner_record\n"
            "owner_record()\n"
            "if child := os.fork():\n"
            "    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
            "os.setgroups([])\n"
            "os.setresgid(65534, 65534, 65534)\n"
            "os.setresuid(65534, 65534, 65534)\n"
            "dead = os.fork() or os._exit(0)\n"
            "os.waitpid(dead, 0)\n"
            f"for pid in ({os.getpid()}, dead):\n"
            "    print(Owner.from_record({**owner_record(), 'pid': pid, 'start': 1}).alive())\n"
        )
        run = f'{mount} && exec {sys.executable} -c "$PROGRAM"'
        said = subprocess.check_output(
            ["unshare", "--mount", "sh", "-c", run], env=environment(PROGRAM=program), text=True
        )
        assert said.split() == ["None", "False"]


def test_owner_reads_well() -> None:
    assert str(Owner()) == "an unknown owner"
    assert str(Owner("web-1", 7)) == "pid 7 on web-1"
    assert str(Owner("web-1", 7, "videos.process", "id-1")) == (
        "pid 7 on web-1, task videos.process[id-1]"
    )
