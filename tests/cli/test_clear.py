"""``manage.py locks clear``: leases and reservations end as they were seen, and no later ones."""

from __future__ import annotations

import builtins
import getpass
import io
import json
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import CommandError, call_command

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock.signals import lock_cleared
from tests.admin.conftest import taken
from tests.command import run, run_json, shell
from tests.conftest import UseRedis
from tests.inside import clear_after_the_first, reserved_key
from tests.steps import holder, orphan, sent, server

pytestmark = pytest.mark.usefixtures("on_redis")
MANY = 101
"""so many that the command prints totals, and the history has more than it shows at once"""
LEFT_ALONE = r"^Changed hands meanwhile, so left alone: {}\.$"


def answering(
    monkeypatch: pytest.MonkeyPatch, answer: str, meanwhile: Callable[[], object] = bool
) -> None:
    """Somebody at the terminal; ``meanwhile`` is what happens while they think."""

    def typed(prompt: str = "") -> str:
        meanwhile()
        return answer

    monkeypatch.setattr(builtins, "input", typed)


def left_alone(name: str, *arguments: str) -> dict[str, str]:
    """Clear locks of which this one changes hands; what became of each."""
    out, options = io.StringIO(), ["--format", "json"]
    with pytest.raises(CommandError, match=LEFT_ALONE.format(name)):
        call_command("locks", "clear", *arguments, *options, stdout=out, stderr=io.StringIO())
    return {row["name"]: row["outcome"] for row in json.loads(out.getvalue())}


def test_each_lease_has_an_outcome_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given four locks, two of which end while the operator is asked
    kept, ended, changed, detached = (taken(name) for name in "abcd")
    successors: list[Lease] = []

    def meanwhile() -> None:
        ended.release()
        changed.release()
        successors.append(taken("c"))
        detached.detach()

    answering(monkeypatch, "y", meanwhile)

    # I expect to be told what became of each
    assert left_alone("c", *"abcd") == {
        "a": "cleared", "b": "not locked", "c": "changed hands", "d": "cleared",
    }  # fmt: skip

    # And nothing to be taken from the one that came after
    assert successors[0].extend()
    assert not kept.extend()
    assert not locks.is_locked("d")


@pytest.mark.parametrize("store", ["redis.RedisStore", "cache.CacheStore"])
def test_a_key_of_other_code_goes_only_with_the_value_that_was_seen(
    use_redis: UseRedis, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no token: the values are compared."""
    use_redis(tasklock={"BACKEND": f"django_tasklock.stores.{store}"})
    cache.set("lock:video:1", {"by": ["A", 1]}, 600)
    answering(monkeypatch, "y", lambda: cache.set("lock:video:1", {"by": ["B", 1]}, 600))
    assert left_alone("video:1", "video:1") == {"video:1": "changed hands"}
    assert cache.get("lock:video:1") == {"by": ["B", 1]}
    # Nor does a lease that is granted meanwhile
    leases: list[Lease] = []

    def is_taken() -> None:
        cache.delete("lock:video:1")
        leases.append(taken("video:1"))

    answering(monkeypatch, "y", is_taken)
    assert left_alone("video:1", "video:1") == {"video:1": "changed hands"}
    assert leases[0].release()
    cache.set("lock:video:1", {"by": ["B", 1]}, 600)
    assert run("clear", "video:1", "--noinput").startswith("cleared video:1, held by other code")


def test_large_values_of_other_code_are_told_from_each_other() -> None:
    cache.set("lock:video:1", "a" * 20_000, 600)
    digest = holder("video:1").digest
    for other in ("b" * 20_000, "a" * 20_001):
        cache.set("lock:video:1", other, 600)
        assert locks.clear("video:1", digest=digest) is False
    cache.set("lock:video:1", "a" * 20_000, 600)
    assert locks.clear("video:1", digest=digest)
    with pytest.raises(TypeError, match="a digest must be a str"):
        locks.clear("video:1", digest=b"x")  # type: ignore[arg-type]


def test_a_clear_asks_and_says_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    taken("video:1")
    orphan("video:2")
    shown = run("clear", "--all", "--dry-run").splitlines()
    assert [line.split()[2] for line in shown] == ["video:2,", "video:1,"]
    assert all(line.startswith("would clear ") for line in shown)
    err = io.StringIO()
    answering(monkeypatch, "n")
    with pytest.raises(CommandError, match=r"^Nothing was cleared\.$"):
        call_command("locks", "clear", "video:1", "video:2", stderr=err)
    assert "Its process is alive: two runs may overlap." in err.getvalue()
    assert "Its process is gone: no two runs overlap." in err.getvalue()
    assert err.getvalue().endswith("Clear these 2 locks? [y/N] ")
    answering(monkeypatch, "y")
    first, second = run("clear", "video:2", "video:1").splitlines()
    assert first.startswith("cleared video:2, held by pid ")
    assert second.startswith(f"cleared video:1, held by pid {os.getpid()}")


def test_of_many_clears_the_command_says_the_total_and_each_is_a_line_and_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    by = f"{getpass.getuser()} (locks clear)"
    taken("report", task="reports.daily")
    with sent(lock_cleared) as heard:
        said = run("clear", "--task", "reports.*", "--noinput")
        assert said.startswith("cleared report, held by ")
        assert [(event.kind, event.name, event.by) for event in locks.history()] == [
            ("cleared", "report", by)
        ]
        for number in range(MANY):
            taken(f"video:{number}")
        assert run("clear", "--prefix", "video:", "--noinput") == f"cleared {MANY}\n"
    assert len(caplog.records) == 1 + MANY
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert all(line.endswith(f"was cleared by {by}") for line in caplog.messages)
    assert len(locks.history(limit=2 * MANY)) == len(heard) == 1 + MANY
    assert run("clear", "--all", "--noinput") == "Nothing to clear.\n"
    taken("report")
    call_command("locks", "clear", prefix="rep", interactive=False, stdout=io.StringIO())
    assert not locks.is_locked("report")


def test_a_clear_of_those_whose_owner_is_gone() -> None:
    taken("alive")
    orphan("gone")
    (row,) = run_json("clear", "--owner-gone", "--noinput")
    assert (row["name"], row["outcome"], row["was"]["name"]) == ("gone", "cleared", "gone")
    assert run("clear", "--owner-gone") == "Nothing to clear.\n"
    assert locks.is_locked("alive")


@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreUnavailable("no answer", "default")])
def test_a_clear_that_ends_before_it_is_done_says_what_was_cleared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    for number in range(MANY):
        taken(f"video:{number}")
    clear_after_the_first(monkeypatch, error)
    out = io.StringIO()
    with pytest.raises((CommandError, SystemExit)) as ended:
        call_command("locks", "clear", "--all", "--noinput", stdout=out)
    assert out.getvalue().startswith("cleared video:")
    assert len(locks.history()) == 1
    (line,) = caplog.messages
    assert ", was cleared by " in line
    if error is KeyboardInterrupt:
        assert getattr(ended.value, "code", None) == 128 + signal.SIGINT


def test_a_clear_that_clears_nothing_exits_1(process_env: Callable[[], dict[str, str]]) -> None:
    taken("video:1")
    for arguments, reason in (
        (["video:1"], "there is nobody to ask. Use --noinput"),
        (["video:2", "--noinput"], "video:2: not locked."),
    ):
        done = shell(process_env(), "clear", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert "CommandError: " in done.stderr
        assert reason in done.stderr
    assert locks.is_locked("video:1")


# ------------------------------------------------------------------------------ reservations


def reserve(name: str, task: str = "videos.process", ttl: float = 600) -> None:
    assert locks.store.reserve(reserved_key(task, name), f"id-of-{name}", ttl) is None


def reserved(*arguments: str) -> list[str]:
    return [row["name"] for row in run_json("list", "--queued", *arguments)]


def test_reservations_are_listed_by_name_and_task() -> None:
    reserve("video:1")
    reserve("video:2", ttl=300)
    reserve("report", task="a task of reports", ttl=900)
    assert reserved() == ["video:2", "video:1", "report"]
    assert reserved("--limit", "1") == ["video:2"]
    assert reserved("video:") == ["video:2", "video:1"]
    (row,) = run_json("list", "--queued", "--task", "a*reports")
    assert 890 < row.pop("ttl") <= 900
    assert row == {
        "task": "a task of reports", "name": "report", "task_id": "id-of-report",
        "store": "default",
    }  # fmt: skip
    header, first, *_ = run("list", "--queued").splitlines()
    assert header.split() == ["NAME", "TTL", "TASK", "TASK", "ID"]
    assert first.split()[-1] == "id-of-video:2"
    assert run("list", "--queued", "no") == "No reservations.\n"


def test_only_the_reservation_that_was_seen_is_cleared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reserve("video:1")
    reserve("report", task="reports.daily")
    key, store = reserved_key("videos.process", "video:1"), locks.store
    answering(monkeypatch, "y", lambda: store.reserve(key, "the next", 60, over="id-of-video:1"))
    assert left_alone("video:1", "--queued", "video:1") == {"video:1": "changed hands"}
    assert run("clear", "--queued", "--task", "reports.*", "--dry-run").startswith("would clear")
    answering(monkeypatch, "y")
    assert run("clear", "--queued", "video:1") == (
        "cleared video:1, reserved for task videos.process[the next]\n"
    )
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "the reservation of the job video:1 in store default for the task "
        f"videos.process[the next] was cleared by {getpass.getuser()} (locks clear)"
    )
    assert vars(record)["lock_task_id"] == "the next"
    assert reserved() == ["report"]
    with pytest.raises(CommandError, match=r"^video:1: not reserved\.$"):
        run("clear", "--queued", "video:1", "--noinput")
    key = reserved_key("reports.daily", "report")
    answering(monkeypatch, "y", lambda: store.unreserve(key, "id-of-report"))
    assert run("clear", "--queued", "report").startswith("not locked report, reserved for ")


def test_what_strangers_wrote_is_no_reservation() -> None:
    reserve("video:1")
    strange: list[Any] = [
        b"\xff\xfe", b" queued \xff", " queued", " queued ", " queued x", " queued  y",
        " queued task na\x1bme", f" queued {'x' * 10**6} {'y' * 10**6}", " queued task theirs",
    ]  # fmt: skip
    store: Any = locks.store
    server().zadd(store.keys.listed, dict.fromkeys(strange, 9e15))
    server().set(store.key(" queued task theirs"), b"\xff\x1b[2J")
    assert reserved() == ["video:1"]
    assert run("clear", "--queued", "video:1", "--noinput").startswith("cleared video:1")
