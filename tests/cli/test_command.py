"""``manage.py locks``: in this process where that is enough, else as a shell would run it."""

from __future__ import annotations

import builtins
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.test.utils import override_settings

from django_tasklock import Lease, StoreUnavailable, locks
from django_tasklock.cli import clear_locks
from django_tasklock.cli.columns import as_rich_table
from django_tasklock.cli.list_locks import LOCK_CSV_FIELDS
from django_tasklock.cli.tables import LOCK_COLUMNS
from django_tasklock.operators.clearing import clear_all_seen
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import orphan
from tests.store_cases import redis_cache

Environment = Callable[[], dict[str, str]]
KEYS = [
    "name", "ttl", "acquired_at", "owner", "token", "store", "key",
    "fence", "waiters", "longest_wait", "alive", "renewing", "held_by", "reason", "slot", "cooling",
]  # fmt: skip


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def acquire(name: str, ttl: float = 600, **who: Any) -> Lease:
    lease = locks.try_acquire(name, ttl=ttl, **who)
    assert isinstance(lease, Lease)
    return lease


def run(*arguments: str) -> str:
    """What the command prints on stdout."""
    out = io.StringIO()
    call_command("locks", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def shell(env: dict[str, str], *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with pipes."""
    return subprocess.run(
        [sys.executable, "-m", "django", "locks", *arguments],
        env=env,
        text=True,
        capture_output=True,
        timeout=180,
        **{"stdin": subprocess.DEVNULL, **options},
    )


def terminal(env: dict[str, str], *command: str) -> str:
    """What a command writes to a terminal, of 120 columns unless ``env`` says otherwise."""
    master, slave = pty.openpty()
    env = {"COLUMNS": "120", **env, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, env=env, stdin=slave, stdout=slave, stderr=slave, close_fds=True
    )
    os.close(slave)
    written = b""
    try:
        while chunk := os.read(master, 65536):
            written += chunk
    except OSError:  # Linux's way to say that the other end was closed
        pass
    os.close(master)
    assert process.wait(timeout=180) == 0, written
    return written.decode()


def answering(monkeypatch: pytest.MonkeyPatch, answer: str, meanwhile: Any = None) -> None:
    """Somebody at the terminal; ``meanwhile`` is what happens while they think."""

    def typed(prompt: str = "") -> str:
        if meanwhile:
            meanwhile()
        return answer

    monkeypatch.setattr(builtins, "input", typed)


# ------------------------------------------------------------------------------ list


def test_list_of_nothing(on_redis: None) -> None:
    assert run("list") == "No locks.\n"
    assert json.loads(run("list", "--format", "json")) == []


def test_list_is_aligned_lines_soonest_to_expire_first(on_redis: None) -> None:
    lease = acquire("video:123", 86490, task="videos.transcode", task_id="0a1b")
    acquire("report", 7370)

    header, first, second = run("list").splitlines()

    assert re.split(" {2,}", header) == [
        "NAME", "TTL", "AGE", "WAIT", "HELD BY", "PROCESS", "TASK", "TASK ID",
    ]  # fmt: skip
    assert first.split()[:2] == ["report", "2h02m"]
    process = f"{lease.owner.host}:{lease.owner.pid}"
    assert second.split()[:2] == ["video:123", "1d00h"]
    assert second.split()[3:] == ["-", process, "alive", "videos.transcode", "0a1b"]
    for title, cell in (("HELD BY", process), ("TASK", "videos.transcode"), ("TASK ID", "0a1b")):
        assert header.index(title) == second.index(cell)


def test_list_json_carries_the_fields(on_redis: None) -> None:
    lease = acquire("video:123", 60, task="videos.transcode", task_id="0a1b")

    (row,) = json.loads(run("list", "--format", "json"))

    assert list(row) == KEYS
    assert row["name"] == "video:123"
    assert 0 < row["ttl"] <= 60
    assert row["token"] == lease.token
    assert row["store"] == "default"
    assert row["key"] == cache.make_key("lock:video:123")
    assert row["owner"] == lease.owner.as_dict()
    assert row["owner"]["task_id"] == "0a1b"
    assert (row["fence"], row["waiters"]) == (lease.fence, 0)
    assert (row["alive"], row["renewing"]) == (True, False)
    assert {*LOCK_CSV_FIELDS} == {*row, *row["owner"]} - {
        "owner",
        "boot",
        "pidns",
        "start",
        "group",
        "mark",
        "slots",
        "waits_for",
        "adoptions",
        "trace",
        "inside",
    }
    info = locks.get("video:123")
    assert info is not None
    assert info.acquired_at is not None
    assert row["acquired_at"] == info.acquired_at.isoformat()


def test_list_of_a_prefix(on_redis: None) -> None:
    for name in ("video:1", "video:2", "videos", "report"):
        acquire(name)
    names = {row["name"] for row in json.loads(run("list", "video:", "--format", "json"))}
    assert names == {"video:1", "video:2"}
    assert run("list", "nothing") == "No locks.\n"


def test_another_store(use_caches: UseCaches, redis_server: RedisServer) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "other": {"CACHE": "second"}},
    )
    acquire("here")
    locks.using("other").acquire("there", ttl=60)
    assert "there" not in run("list")
    (row,) = json.loads(run("list", "--store", "other", "--format", "json"))
    assert (row["name"], row["store"]) == ("there", "other")
    assert run("clear", "there", "--store", "other").startswith("cleared there")
    assert locks.is_locked("here")
    with pytest.raises(CommandError, match="no lock store 'nowhere'"):
        run("list", "--store", "nowhere")


# ------------------------------------------------------------------------------ show


def test_show_says_all_that_is_known(on_redis: None) -> None:
    lease = acquire("video:123", 7370, task="videos.transcode", task_id="0a1b")
    fields = dict(line.split(":", 1) for line in run("show", "video:123").splitlines())
    fields = {label: value.strip() for label, value in fields.items()}
    assert fields.pop("acquired").endswith("ago)")
    assert fields == {
        "name": "video:123",
        "store": "default",
        "key": cache.make_key("lock:video:123"),
        "ttl": "2h02m",
        "host": lease.owner.host,
        "pid": str(lease.owner.pid),
        "process": "alive",
        "thread": lease.owner.thread,
        "task": "videos.transcode",
        "task id": "0a1b",
        "token": lease.token,
        "fence": str(lease.fence),
        "waiters": "0",
        "renewed": "no",
    }


def test_site_without_time_zones(on_redis: None) -> None:
    acquire("video:1")
    with override_settings(USE_TZ=False):
        assert "video:1" in run("list")
        assert "ago)" in run("show", "video:1")


def test_show_as_json(on_redis: None) -> None:
    lease = acquire("video:123")
    shown = json.loads(run("show", "video:123", "--format", "json"))
    assert list(shown) == [*KEYS, "row", "waiting"]
    assert (shown["renewing"], shown["row"]) == (False, None)
    assert (shown["fence"], shown["waiters"], shown["alive"]) == (lease.fence, 0, True)
    assert shown["waiting"] == []


def test_show_of_a_foreign_key(on_redis: None) -> None:
    cache.add("lock:legacy", "locked", None)
    lines = run("show", "legacy").splitlines()
    assert "ttl:      never" in lines
    assert "pid:      -" in lines
    assert json.loads(run("show", "legacy", "--format", "json"))["token"] is None


def test_show_of_what_is_not_locked(on_redis: None) -> None:
    with pytest.raises(CommandError, match=r"^video:1 is not locked\.$"):
        run("show", "video:1")


# ------------------------------------------------------------------------------ clear


def test_clear_by_name(on_redis: None) -> None:
    lease = acquire("video:1", task="videos.transcode", task_id="0a1b")
    staying = acquire("video:2")
    assert run("clear", "video:1") == f"cleared video:1, held by {lease.owner}\n"
    assert not locks.is_locked("video:1")
    assert staying.extend()
    assert not lease.extend()


def test_clear_a_foreign_key(on_redis: None) -> None:
    cache.add("lock:legacy", "locked", 600)
    assert run("clear", "legacy") == "cleared legacy, held by other code\n"
    assert cache.get("lock:legacy") is None


def test_clear_of_a_prefix_asks(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("video:1", "video:2", "report"):
        acquire(name)

    answering(monkeypatch, "n")
    with pytest.raises(CommandError, match="Nothing was cleared"):
        run("clear", "--prefix", "video:")
    answering(monkeypatch, "")
    with pytest.raises(CommandError, match="Nothing was cleared"):
        run("clear", "--prefix", "video:")
    assert locks.count() == 3

    answering(monkeypatch, "y")
    assert len(run("clear", "--prefix", "video:").splitlines()) == 2
    assert [info.name for info in locks.list()] == ["report"]


def test_question_shows_what_would_be_cleared(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire("video:1", task="videos.transcode")
    answering(monkeypatch, "yes")
    out, err = io.StringIO(), io.StringIO()
    call_command("locks", "clear", "--all", "--format", "json", stdout=out, stderr=err)
    assert "videos.transcode" in err.getvalue()
    assert err.getvalue().endswith("Clear this lock? [y/N] ")
    (row,) = json.loads(out.getvalue())
    assert (row["name"], row["outcome"], row["was"]["name"]) == ("video:1", "cleared", "video:1")


def test_question_says_what_a_clear_means(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire("video:1", 60, renew=True)
    locks.acquire("video:2", ttl=60, hold_at_least=60).release()  # type: ignore[union-attr]
    answering(monkeypatch, "yes")
    err = io.StringIO()
    call_command("locks", "clear", "--all", stdout=io.StringIO(), stderr=err)
    header, *rows, summary, question = err.getvalue().splitlines()
    assert header.split("  ")[-1] == "WHY"
    lines = {line.split()[0]: line for line in rows}
    assert lines["video:1"].endswith(
        "NOT SAFE  Its process is alive: two runs may overlap. It notices within 20s, at its "
        "next renewal."
    )
    assert lines["video:2"].endswith("It is cooling, its work is over: no two runs overlap.")
    assert summary == "Not safe to clear: 1 of 2."
    assert question == "Clear these 2 locks? [y/N] "


def test_lease_that_changes_hands_while_it_is_asked_is_left_alone(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lock that gets another holder, and one that is released, while the operator thinks
    changing, ending, staying = acquire("changing"), acquire("ending"), acquire("staying")
    successors: list[Lease] = []

    def meanwhile() -> None:
        ending.release()
        changing.release()
        successors.append(acquire("changing"))

    answering(monkeypatch, "y", meanwhile)

    out = io.StringIO()
    with pytest.raises(CommandError, match=r"^changing changed hands meanwhile, left alone\.$"):
        call_command("locks", "clear", "--all", stdout=out, stderr=io.StringIO())

    assert successors[0].extend()
    assert not staying.extend()
    outcomes = sorted(line.partition(", held by")[0] for line in out.getvalue().splitlines())
    assert outcomes == ["changed hands changing", "cleared staying", "not locked ending"]


def test_noinput_does_not_ask(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "input", lambda: pytest.fail("it asked"))
    acquire("video:1")
    acquire("report")
    run("clear", "--prefix", "video", "--noinput")
    assert [info.name for info in locks.list()] == ["report"]
    run("clear", "--all", "--no-input")
    assert locks.count() == 0


def test_clear_of_nothing_does_not_ask(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "input", lambda: pytest.fail("it asked"))
    assert run("clear", "--all") == "No locks.\n"
    assert json.loads(run("clear", "--prefix", "x", "--format", "json")) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyboardInterrupt(), "Interrupted: which others were cleared is not known."),
        (StoreUnavailable("default", "it is gone"), "it is gone"),
    ],
)
def test_clear_that_ends_before_it_is_done_says_what_was_cleared(
    on_redis: None, monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    # Given two locks that are cleared one after the other, and no answer to the second clear
    acquire("video:1", 300)
    acquire("video:2", 600)
    calls: list[object] = []

    def clear(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise error
        return clear_all_seen(*arguments, **options)

    monkeypatch.setattr(clear_locks, "LOCKS_PER_CLEAR", 1)
    monkeypatch.setattr(clear_locks, "clear_all_seen", clear)

    # When all are cleared, I expect to hear of the first
    out = io.StringIO()
    with pytest.raises((CommandError, StoreUnavailable)) as ended:
        call_command("locks", "clear", "--all", "--noinput", stdout=out)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("cleared video:1, held by ")
    assert words in str(ended.value)
    assert not locks.is_locked("video:1")


@pytest.mark.parametrize("which", [["video:1"], ["--prefix", "video"], ["--all"]])
def test_dry_run_clears_nothing(
    on_redis: None, monkeypatch: pytest.MonkeyPatch, which: list[str]
) -> None:
    monkeypatch.setattr(builtins, "input", lambda: pytest.fail("it asked"))
    lease = acquire("video:1")
    assert run("clear", *which, "--dry-run") == f"would clear video:1, held by {lease.owner}\n"
    (row,) = json.loads(run("clear", *which, "--dry-run", "--format", "json"))
    assert row["outcome"] == "would clear"
    assert lease.extend()


@pytest.mark.parametrize(
    "which",
    [[], ["a", "--all"], ["--prefix", "a", "--all"], ["a", "--prefix", "b"], ["--prefix", ""]],
)
def test_clear_must_be_told_which(on_redis: None, which: list[str]) -> None:
    lease = acquire("a")
    with pytest.raises(CommandError):
        run("clear", "--noinput", *which)
    assert lease.extend()


@pytest.mark.parametrize("name", ["", "a b", "a\x1b", "x" * 201])
def test_bad_name_is_one_sentence(on_redis: None, name: str) -> None:
    for verb in ("show", "clear"):
        with pytest.raises(CommandError, match="a lock's name") as raised:
            run(verb, name)
        assert str(raised.value).isprintable()


def test_store_that_cannot_list(on_locmem: None) -> None:
    acquire("video:1")
    for arguments in (["list"], ["clear", "--all"], ["clear", "--prefix", "v"]):
        with pytest.raises(CommandError, match="'default' cannot list its locks"):
            run(*arguments)
    assert "video:1" in run("show", "video:1")
    assert run("clear", "video:1").startswith("cleared video:1")


# ------------------------------------------------------------------------------ a shell


def test_nobody_there_to_answer(on_redis: None, process_env: Environment) -> None:
    lease = acquire("video:1")
    done = shell(process_env(), "clear", "--all")
    assert done.returncode == 1
    assert "Use --noinput" in done.stderr
    assert "Traceback" not in done.stderr
    assert lease.extend()


def test_not_locked_exits_1_in_a_sentence(on_redis: None, process_env: Environment) -> None:
    done = shell(process_env(), "show", "video:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "CommandError: video:1 is not locked.\n"
    # And what is locked is cleared all the same
    acquire("video:2")
    done = shell(process_env(), "clear", "video:1", "video:2", "video:9")
    assert done.returncode == 1
    assert done.stderr.endswith("CommandError: video:1, video:9 are not locked.\n")
    assert done.stdout.startswith("cleared video:2, ")
    assert not locks.is_locked("video:2")


def test_redis_down_is_one_sentence(
    use_redis: UseRedis, own_redis_server: RedisServer, process_env: Environment
) -> None:
    use_redis(own_redis_server.url, IGNORE_EXCEPTIONS=True)
    env = process_env()
    own_redis_server.stop()
    for arguments in (["list"], ["clear", "x"]):
        done = shell(env, *arguments)
        assert (done.returncode, done.stdout) == (1, ""), done
        (line,) = done.stderr.splitlines()
        assert line.startswith("CommandError: the lock store 'default' is unavailable: ")
    for in_process in (["show", "x"], ["list", "x", "--format", "json"], ["clear", "--all"]):
        with pytest.raises(CommandError, match="is unavailable"):
            run(*in_process)


def test_what_others_wrote_never_reaches_a_terminal_raw(
    on_redis: None, process_env: Environment
) -> None:
    # Given a holder whose names would clear the screen, ring, forge a line and turn the text
    hostile = "\x1b[2J\x07\r\nvideo:2\u202e\x9b31m[red]"
    acquire("video:1", task=hostile, task_id=hostile)
    env = process_env()
    outputs = [
        run(*arguments)
        for arguments in (["list"], ["list", "--format", "json"], ["show", "video:1"],
                          ["show", "video:1", "--format", "json"], ["clear", "--all", "--dry-run"])
    ]  # fmt: skip
    assert len(outputs[0].splitlines()) == 2
    for output in outputs:
        assert "[2J" in output
        assert output.replace("\n", "").isprintable()

    # Wide enough that nothing is folded.
    in_a_terminal = terminal(
        env | {"COLUMNS": "400"}, sys.executable, "-m", "django", "locks", "list"
    )
    for raw in ("\x1b[2J", "\x07", "\u202e", "\x9b"):
        assert raw not in in_a_terminal
    assert "[red]" in in_a_terminal


def test_terminal_gets_a_table(on_redis: None, process_env: Environment) -> None:
    acquire("video:123", task="videos.transcode")
    env = process_env()
    orphan("video:124")  # Which is shown in red.
    command = [sys.executable, "-m", "django", "locks", "list"]
    table = terminal(env, *command)
    assert "\x1b[" in table
    assert "─" in table
    assert "videos.transcode" in table
    in_colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert in_colour.search(table)
    plain = terminal({**env, "NO_COLOR": "1"}, *command)
    assert "─" in plain
    assert not in_colour.search(plain)


@pytest.mark.parametrize(
    ("columns", "headers"),
    [
        (120, "NAME TTL AGE WAIT HELD-BY PROCESS TASK TASK-ID"),
        (60, "NAME TTL HELD-BY PROCESS TASK"),
        (50, "NAME TTL HELD-BY PROCESS"),
        (40, "NAME TTL HELD-BY"),
        (22, "NAME TTL"),
    ],
)
def test_narrow_terminal_gets_the_columns_that_matter_more(
    monkeypatch: pytest.MonkeyPatch, columns: int, headers: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ("video:123", "9m59s", "1m2s", "3s", "host-1.example:4711", "alive", "t" * 20, "0a1b" * 9)
    written = as_rich_table(LOCK_COLUMNS, [row], color=False)
    assert written is not None
    table = re.sub(r"\x1b\[[0-9;]*m", "", written)
    header = next(line for line in table.splitlines() if "NAME" in line)
    shown = re.split(" {2,}", header.strip())
    assert [name.replace(" ", "-") for name in shown] == headers.split(), table
    assert "video:123" in table
    assert max(map(len, table.splitlines())) <= columns


def test_columns_of_wide_characters_are_aligned(on_redis: None) -> None:
    """A Chinese character takes two cells of a terminal, and an accent that is added none."""
    acquire("报告:日本", 300)
    acquire("re\u0301sume\u0301", 200)
    header, first, second = run("list").splitlines()
    assert header.index("TTL") == 11
    assert first.index("3m1") == 11 + 2, "two accents"
    assert second.index("4m5") == 11 - 4, "four wide characters"


def test_clear_with_a_closed_stdin_asks_nobody(on_redis: None, process_env: Environment) -> None:
    acquire("video:123")
    command = f"{sys.executable} -m django locks clear --prefix video <&-"
    done = subprocess.run(
        ["sh", "-c", command],
        env=process_env(),
        text=True,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert "Nothing was cleared: there is nobody to ask." in done.stderr
    assert "Traceback" not in done.stderr
    assert locks.is_locked("video:123")


def test_terminal_without_rich_gets_lines(on_redis: None, process_env: Environment) -> None:
    acquire("video:123", task="videos.transcode")
    script = (
        "import sys; sys.modules['rich'] = sys.modules['rich.box'] = None; "
        "from django.core.management import execute_from_command_line as run; "
        "run(['manage.py', 'locks', 'list'])"
    )
    lines = terminal(process_env(), sys.executable, "-c", script).splitlines()
    assert lines[0].startswith("NAME")
    assert lines[1].startswith("video:123  ")


VERBS = [(["list"], 0), (["list", "--watch", "0.1"], 0), (["clear", "job:0", "nothing"], 1)]


@pytest.mark.parametrize(("arguments", "status"), VERBS)
def test_reader_that_has_gone_away(
    on_redis: None, process_env: Environment, arguments: list[str], status: int
) -> None:
    # Given more than a buffer to say, and nobody left to read it
    for number in range(500):
        acquire(f"job:{number}")
    reader, writer = os.pipe()
    os.close(reader)
    done = said_to(writer, process_env(), *arguments)
    os.close(writer)
    # I expect the verb's own status, and no complaint
    assert done.returncode == status, done.stderr
    assert "Error" not in done.stderr.replace("CommandError: ", "")
    assert ("CommandError: " in done.stderr) == bool(status)


@pytest.mark.parametrize(
    ("arguments", "where"), [(["list", "--format", "json"], "full"), (["list"], "closed")]
)
def test_output_that_cannot_be_written(
    on_redis: None, process_env: Environment, arguments: list[str], where: str
) -> None:
    acquire("job:0")
    if where == "full":
        with open("/dev/full", "w") as full:
            done = said_to(full, process_env(), *arguments)
        why = "No space left on device"
    else:
        done = said_to(None, process_env(), *arguments)
        why = "Bad file descriptor"
    assert done.returncode == 1
    assert done.stderr == f"CommandError: The output could not be written: {why}.\n"


def said_to(out: Any, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with this as its standard output; None: it is closed."""
    closed = ["sh", "-c", 'exec "$@" >&-', "sh"] if out is None else []
    return subprocess.run(
        [*closed, sys.executable, "-m", "django", "locks", *arguments],
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        timeout=180,
    )


def test_djangos_options_may_follow_the_verb(on_redis: None, process_env: Environment) -> None:
    env = process_env()
    del env["DJANGO_SETTINGS_MODULE"]
    done = shell(env, "list", "--settings", "tests.settings", "--no-color", "-v", "2")
    assert (done.returncode, done.stdout) == (0, "No locks.\n"), done.stderr


def test_no_verb_is_an_error(process_env: Environment, on_redis: None) -> None:
    done = shell(process_env())
    assert done.returncode == 2
    assert "VERB" in done.stderr
