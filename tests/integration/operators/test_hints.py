"""The commands that hints name do what is said, pasted into a shell, whatever the names hold."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.cache import caches
from django.core.management import call_command
from django.test import Client

from django_tasklock import LockInfo, locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.admin.commands import commands_on
from django_tasklock.operators.doctor import diagnose, requeue
from django_tasklock.operators.hints import command_line
from tests.app.models import Job
from tests.conftest import UseCaches
from tests.integration.admin.test_admin import LIST, change_url, client_with, operator, words_of
from tests.integration.operators.test_doctor import guard
from tests.mailroom import mailroom
from tests.servers import RedisServer
from tests.steps import Meanwhile, in_child
from tests.store_cases import redis_cache
from tests.waiting import until

__all__ = ["client_with", "operator"]
pytestmark = pytest.mark.django_db(transaction=True)
OTHER = "the other;store"
NAMES = [
    "plain:1", "--all", "-v", "--", "--prefix=", "a;touch${IFS}pwned", "$(touch${IFS}pwned)",
    "`touch${IFS}pwned`", "it's", '"', "'", "\\", "*", "#x", "~", "!!", "a&b", "a|b", "a>pwned",
    "ü", "{1,2}",
]  # fmt: skip
Environment = Callable[[], dict[str, str]]


@pytest.fixture(autouse=True)
def two_stores(use_caches: UseCaches, redis_server: RedisServer) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, OTHER: {"CACHE": "second"}},
    )


@pytest.fixture
def paste(process_env: Environment, tmp_path: Path) -> Callable[..., str]:
    """``paste(command, ...)``: what these commands print in a shell; none of them may fail."""

    def run(*commands: str) -> str:
        assert all(command.startswith("manage.py locks ") for command in commands)
        python = shlex.quote(sys.executable)
        script = "\n".join(
            f"{python} -m django {command.removeprefix('manage.py ')} || exit"
            for command in commands
        )
        done = subprocess.run(
            ["sh", "-c", script],
            env=process_env(),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        assert list(tmp_path.iterdir()) == []
        return done.stdout

    return run


def endless(alias: str) -> None:
    """Keys of every name that never expire, in one store."""
    for name in NAMES:
        caches["default" if alias == "default" else "second"].add(f"lock:{name}", 1, timeout=None)


def said(info: LockInfo | None) -> LockInfo:
    assert info is not None
    return info


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["default", OTHER])
def test_what_the_doctor_says_of_keys_that_never_expire(
    paste: Callable[..., str], alias: str
) -> None:
    endless("default")
    endless(OTHER)
    found = {p.what: p for p in diagnose([alias]) if p.kind == "no ttl"}
    assert set(found) == set(NAMES)
    for problem in found.values():
        assert problem.hint == f"If nobody works under it: {problem.command}"
    # One process for each takes long: of the dangerous ones, the first three, and all together.
    paste(*(found[name].command for name in NAMES[:3]))
    start = command_line("clear", store=alias)
    rest = [found[name].command.removeprefix(f"{start} -- ") for name in NAMES[3:]]
    paste(f"{start} -- {' '.join(rest)}")
    assert list(locks.using(alias).store.scan()) == []
    others = locks.using(OTHER if alias == "default" else "default")
    assert {info.name for info in others.store.scan()} == set(NAMES)


@pytest.mark.slow
def test_what_the_doctor_says_of_an_owner_that_is_gone(paste: Callable[..., str]) -> None:
    in_child(lambda: str(locks.using(OTHER).acquire("--all", ttl=600)))
    in_child(lambda: str(locks.using(OTHER).acquire("stays", ttl=600)))
    in_child(lambda: str(locks.acquire("--all", ttl=600)))
    (problem, _) = sorted(diagnose([OTHER]), key=lambda problem: problem.what)
    assert (problem.kind, problem.what) == ("owner gone", "--all")
    assert problem.hint == f"It ends by itself; or: {problem.command}"
    paste(problem.command)
    assert [info.name for info in locks.using(OTHER).list()] == ["stays"]
    assert locks.is_locked("--all")


def test_what_the_doctor_says_of_lost_work(redis_server: RedisServer) -> None:
    with mailroom(redis_server.url) as room:
        room.task(guard=guard(), lock_name="job:{job}", lock_store=OTHER)
        Job.objects.create(status="processing")
        (problem,) = diagnose()
        assert problem.command == f"manage.py locks doctor --store '{OTHER}' --requeue"
        assert [p.kind for p in diagnose([OTHER])] == ["lost work"]
        assert requeue(problem)


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["default", OTHER])
@pytest.mark.parametrize("name", ["--all", "$(touch${IFS}pwned)", "it's"])
def test_what_the_page_of_a_lock_says(
    paste: Callable[..., str], operator: Client, alias: str, name: str
) -> None:
    lease = locks.using(alias).acquire(name, ttl=600)
    assert lease
    show, clear = commands_on(said(locks.using(alias).get(name)))
    assert f"name:     {name}\n" in paste(show[0])
    assert paste(clear[0]) == f"{clear[1]}\n"
    assert lease.extend()
    words = words_of(operator.get(change_url(lease)))
    assert f"$ {show[0]} " in words
    assert f"$ {clear[0]} " in words


def test_what_the_page_of_their_health_says(operator: Client) -> None:
    endless(OTHER)
    words = words_of(operator.get(f"{LIST}health/"))
    for name in NAMES:
        assert command_line("clear", name, store=OTHER) in words


ODD = "-odd;`id>pwned`$(id>pwned)'"


@pytest.mark.slow
@pytest.mark.parametrize("alias", [OTHER, "--all"])
def test_the_hint_of_each_kind_of_finding_runs_whatever_the_names(
    use_caches: UseCaches,
    redis_server: RedisServer,
    own_redis_server: RedisServer,
    paste: Callable[..., str],
    alias: str,
) -> None:
    """Run by a shell; ``doctor --requeue`` here, where the tasks are."""
    caches_of = {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)}
    other = {} if alias == "default" else {alias: {"CACHE": "second"}}
    use_caches(caches_of, {"default": {}, **other})
    service = locks.using(alias)
    with mailroom(own_redis_server.url) as room:
        # Given one finding of each kind that names a command, all of them with odd names
        common = {"lock_name": ODD + ":{job}", "lock_store": alias}
        task = room.task(guard=guard(fence_field="lock_fence"), name="-t;x", **common)
        fenced = Job.objects.create(status="processing", lock_fence=10**16)
        Job.objects.create(status="processing")
        stuck = Job.objects.create(status="processing")
        gone = owner_record() | {"start": 1}
        for name, who in (
            (f"{ODD}:{stuck.pk}", {**gone, "task": task.name}), (f"{ODD}:gone", gone),
        ):  # fmt: skip
            service.store.acquire(name, new_token(), 600, who)
        caches["default" if alias == "default" else "second"].add(
            f"lock:{ODD}:endless", 1, timeout=None
        )
        room.task(unique_while="queued", name="-u;x", **common).delay(99)
        room.take()

        def twice() -> bool:
            assert service.acquire(f"{ODD}:own", ttl=600)
            return bool(service.acquire(f"{ODD}:own", ttl=600, wait=300))

        waits = Meanwhile(twice)
        until(lambda: getattr(service.get(f"{ODD}:own"), "waiters", 0) == 1)

        # When each command is run, I expect it to do what it says
        found = [problem for problem in diagnose([alias]) if problem.command]
        assert {problem.kind for problem in found} == {
            "lost work", "fence", "owner gone", "no ttl", "no message", "deadlock",
        }  # fmt: skip
        clears = [problem.command for problem in found if " doctor " not in problem.command]
        assert all(" -- " in command for command in clears)
        paste(*clears)
        assert waits.result()  # The clear has ended the deadlock.
        assert service.clear(f"{ODD}:own")
        sends = {problem.command for problem in found} - set(clears)
        sends |= {str(each.values["requeue"]) for each in found if "requeue" in each.values}
        (send,) = sends
        Job.objects.filter(pk=fenced.pk).update(lock_fence=None)
        call_command(*shlex.split(send)[1:], stdout=io.StringIO(), stderr=io.StringIO())
        assert len(room.waiting()) == 3
        assert [p for p in diagnose([alias]) if p.kind not in ("lost work", "server")] == []


def test_command_line_is_one_line_of_words() -> None:
    line = command_line("clear", "a\nb\x1b[2J", "c d", store="s t", options="--dry-run --noinput")
    assert line.isprintable()
    words = shlex.split(line)
    assert words[:7] == ["manage.py", "locks", "clear", "--store", "s t", "--dry-run", "--noinput"]
    assert words[7:] == ["--", r"a\nb\x1b[2J", "c d"]
