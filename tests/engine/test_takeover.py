"""Takeover: a lock whose owner ran on this machine and is gone is taken at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.records import Held
from tests import needs
from tests.agent import Agent, environment, run_python
from tests.inside import Owner, as_before_a_checkpoint, owner_record
from tests.steps import LONG, held_by, holder, in_child, sent, taken, waiter, waiting
from tests.waiting import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="knows processes by /proc")
pytestmark = [linux, pytest.mark.usefixtures("on_redis")]


@pytest.fixture
def gone() -> dict[str, Any]:
    """The record of a process that has ended."""
    record: dict[str, Any] = in_child(owner_record)
    return record


class TestDeadOwner:
    def test_lock_of_a_killed_process_is_taken_at_once(self) -> None:
        with Agent() as agent:
            # Given a process that holds a lock, and is killed
            first = agent.ask("acquire", name="video:1", ttl=LONG)
            assert locks.acquire("video:1") is None
            agent.process.kill()
            # A zombie is dead: a process whose parent has not asked for its exit code yet.
            os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
            assert holder("video:1").owner.alive() is False
            # I expect the next caller to get the lock at once, and everybody to be told
            with sent(signals.lock_cleared) as cleared:
                lease = taken("video:1")
        assert (lease.fence or 0) > first["fence"]
        (told,) = cleared
        assert (told["name"], told["token"]) == ("video:1", first["token"])
        assert ("takeover" in told["by"], told["holder"].owner.pid) == (True, agent.pid)

    @pytest.mark.parametrize("behind_a_dead_one", [False, True])
    def test_who_waits_notices_the_death(self, behind_a_dead_one: bool) -> None:
        """Also where nobody tells it that it is the next by now: it looks now and then."""
        with Agent() as agent, Agent() as dead:
            agent.ask("acquire", name="video:1", ttl=LONG)
            if behind_a_dead_one:
                dead.ask("wait_meanwhile", name="video:1", ttl=LONG, wait=None)
                until(lambda: waiting("video:1") == 1)
            thread = waiter("video:1", 1 + behind_a_dead_one)
            dead.kill()
            agent.kill()
            killed = time.monotonic()
            thread.result()
        assert time.monotonic() - killed < LONG / 4, "it would ask anyway after 30 s"

    def test_pid_that_was_given_out_again_is_not_the_owner(self, on_locmem: None) -> None:
        """Our own pid, of a process that started at another time. On a plain cache as well."""
        held_by({**owner_record(), "start": owner_record()["start"] - 1000}, "video:1")
        assert taken("video:1").held

    def test_a_lease_that_goes_on_in_another_process_is_not_that_of_the_dead_one(
        self, gone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is adopted after the refusal that named its owner, and has the same token."""
        token, store = held_by(gone, "video:1"), stores["default"]
        find = store.find

        def adopted_meanwhile(name: str) -> Any:
            store.rewrite(name, Held(token), LONG, owner_record(), "adopted")
            return find(name)

        monkeypatch.setattr(store, "find", adopted_meanwhile)
        assert locks.acquire("video:1") is None
        assert holder("video:1").token == token

    def test_a_late_takeover_leaves_the_lease_of_the_first_one_alone(
        self, gone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held_by(gone, "video:1")
        store, first = stores["default"], list[dict[str, Any]]()
        find = store.find
        with Agent() as other:
            # Given another one who has taken the lock over, between our look at it and our clear
            def overtaken(name: str) -> Any:
                found = find(name)
                if not first:
                    first.append(other.ask("acquire", name=name, ttl=LONG))
                return found

            monkeypatch.setattr(store, "find", overtaken)
            # I expect us to be refused, to clear nothing, and the other one to have it still
            with sent(signals.lock_cleared) as cleared:
                assert locks.acquire("video:1") is None
            assert cleared == []
            assert [holder("video:1").token] == [lease["token"] for lease in first]
            assert other.ask("release") is True


class TestLivingOwner:
    def test_owner_lives_while_a_process_of_its_group_does(self, gone: dict[str, Any]) -> None:
        """Its work may go on in a process group, as that of ``locks run``."""
        with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
            held_by({**gone, "group": process.pid}, "video:1")
            assert locks.acquire("video:1") is None
            process.kill()
            # A zombie, of which nobody has asked for its exit code yet, is no life.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert taken("video:1").held
        for group in (2**22 + 1, -1, 10**30, "7", 7.5, [1]):
            assert not Owner.from_record({**gone, "group": group}).alive()

    def test_stopped_process_is_alive(self) -> None:
        with Agent() as agent:
            agent.ask("acquire", name="video:1", ttl=LONG)
            agent.stop()
            assert locks.acquire("video:1", wait=0.2) is None

    def test_who_is_elsewhere_keeps_it(self, gone: dict[str, Any]) -> None:
        there: list[tuple[str, Any]] = [("boot", "another-machine"), ("pidns", "pid:[1]")]
        # Another clock shows other starts; and machines that were resumed from one memory have all
        # in common but their names.
        there += [("timens", "time:[1]"), ("host", "its-clone")]
        for key, value in (*there, *((key, None) for key in ("boot", "pidns", "start", "pid"))):
            token = held_by({**gone, key: value}, "video:1")
            assert holder("video:1").owner.alive() is None
            assert locks.acquire("video:1", wait=0.1) is None
            assert stores["default"].release("video:1", token)

    def test_starts_that_differ_by_a_tick_are_one_start(self) -> None:
        """Each reader of a start rounds it."""
        for ticks in (-1, 1):
            held_by({**owner_record(), "start": owner_record()["start"] + ticks}, f"video:{ticks}")
            assert holder(f"video:{ticks}").owner.alive() is True
            assert locks.acquire(f"video:{ticks}") is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a time namespace")
    def test_holder_in_another_time_namespace_keeps_its_lock(self) -> None:
        """It shares our pids, and sees other starts. So does one that was restored there from a
        checkpoint, and its lease was recorded before."""
        apart = ["unshare", "--time", "--boottime", "1000", "--fork"]
        if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode != 0:
            needs.missing("no time namespace may be made here")
        program = (
            "import django; django.setup()\n"
            "from django_tasklock import locks\n"
            "lease = locks.acquire('video:1', ttl=60); print(lease.owner.pid, flush=True)\n"
            "input(); print(lease.held)\n"
        )
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [*apart, sys.executable, "-c", program]
        with subprocess.Popen(command, env=environment(), **pipes) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            assert holder("video:1").owner.alive() is None
            assert locks.acquire("video:1") is None
            held_by({**owner_record(), "pid": pid, "start": 1}, "video:2")
            assert locks.acquire("video:2") is None
            assert process.communicate("\n")[0] == "True\n"

    def test_what_was_recorded_before_a_checkpoint_proves_no_death(
        self, gone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever is restored has started anew, in a time namespace of its own."""
        now, before = owner_record(), {"start": 1, "timens": "time:[1]"}
        as_before_a_checkpoint(monkeypatch, before)
        until(lambda: owner_record() == now, "what the process is now")
        as_before_a_checkpoint(monkeypatch, before)
        assert Owner.from_record({**gone, **before}).alive() is None

    def test_process_whose_first_thread_has_ended_is_alive(self) -> None:
        """It shows as a zombie, and works on."""
        program = (
            "import ctypes, threading, time, django; django.setup()\n"
            "from django_tasklock import locks\n"
            "locks.acquire('video:1', ttl=60)\n"
            "threading.Thread(target=time.sleep, args=(60,)).start()\n"
            "ctypes.CDLL(None).syscall(60, 0)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], env=environment()) as process:
            stat = Path(f"/proc/{process.pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
            alive = holder("video:1").owner.alive()
            process.kill()
        assert alive is True

    def test_owner_of_whom_nothing_can_be_known_is_alive(self) -> None:
        """A process without a free file descriptor cannot look, and takes nothing for dead."""
        taken("video:1")
        program = (
            "from django_tasklock import locks\n"
            "import ctypes, resource; ctypes.CDLL('libgcc_s.so.1')\n"  # It ends threads.
            "locks.acquire('warm', ttl=60).release()\n"
            "assert locks.acquire('video:1') is None\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 64))\n"
            "print(locks.acquire('video:1', ttl=60))\n"
        )
        assert run_python(program).split() == ["None"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount another /proc")
    def test_owner_of_another_user_behind_a_hidden_proc_is_alive(self) -> None:
        """With hidepid, /proc shows a user their own processes only."""
        mount = "mount -t proc -o hidepid=2 proc /proc"
        if subprocess.run(["unshare", "--mount", "sh", "-c", mount], check=False).returncode != 0:
            needs.missing("no /proc may be mounted here")
        program = (
            # Who becomes somebody else needs no interpreter that they may read: all is imported.
            "import os, django; django.setup()\n"
            "from tests.inside import Owner, owner_record; owner_record()\n"
            "if child := os.fork():\n"
            "    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
            "os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)\n"
            "dead = os.fork() or os._exit(0); os.waitpid(dead, 0)\n"
            f"for pid in ({os.getpid()}, dead):\n"
            "    print(Owner.from_record({**owner_record(), 'pid': pid, 'start': 1}).alive())\n"
        )
        command = ["unshare", "--mount", "sh", "-c", f'{mount} && exec {sys.executable} -c "$CODE"']
        said = subprocess.check_output(command, env=environment(CODE=program), text=True)
        assert said.split() == ["None", "False"]
