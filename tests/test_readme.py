"""What the README and the docs say is so: their code runs, their tables are those of the code."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from django.core.cache import cache
from django.core.management import load_command_class
from django.core.management.base import CommandParser
from django.dispatch import Signal

import django_tasklock
from django_tasklock import (
    Lease,
    LockInfo,
    LockService,
    conf,
    exceptions,
    lock,
    locks,
    signals,
)
from django_tasklock.celery import delivery, requeue, run
from django_tasklock.celery.options import CHOICES, OPTIONS
from django_tasklock.celery.runnote import RunNote
from django_tasklock.cli.run import HELD_ELSEWHERE, LOST, OUTAGE
from django_tasklock.cli.show import COLUMNS
from django_tasklock.guards import StatusGuard
from django_tasklock.lease import new_token
from django_tasklock.owner import Owner, owner_record
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Note
from django_tasklock.stores.cache import CacheStore
from django_tasklock.stores.redis import RedisStore
from django_tasklock.testing import StoreContract
from example_project.servers import RedisServer
from tests.conftest import UseRedis
from tests.pages import (
    PAGES,
    README,
    ROOT,
    Block,
    anchors,
    blocks,
    code,
    links,
    named,
    prose,
    section,
    table,
)

CELERY = ROOT / "docs/celery.md"
STORES = ROOT / "docs/stores.md"
MOVING = ROOT / "docs/moving.md"
TUTORIAL = ROOT / "docs/tutorial.md"
CRON = ROOT / "docs/beat-and-cron.md"

# ------------------------------------------------------------------------------ code that runs

RUNNER = """
import ast, json, sys
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
namespace = {"__name__": "pages"}
for where, line, source in json.load(sys.stdin):
    tree = ast.parse("\\n" * (line - 1) + source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), namespace)
    if last is not None:
        namespace["_"] = eval(compile(ast.Expression(last.value), where, "eval"), namespace)
"""

APPLY = """
from django.test.utils import override_settings
override_settings(
    **{name: value for name, value in globals().items() if name in ("CACHES", "TASKLOCK")}
).enable()
"""


@dataclass(frozen=True)
class Around:
    """What a reader of the block called ``label`` has, and what must be so after it."""

    label: str
    before: str = ""
    after: str = ""


NEWCOMERS = {
    "# mysite/settings.py, at the end",
    "# mysite/celery.py",
    "# mysite/__init__.py",
    "# mysite/urls.py",
    "# videos/models.py",
    "# videos/views.py",
}
"""blocks of a project that begins with nothing: `tests/test_tutorial.py` runs them"""

README_STEPS = [
    Around(
        "# videos/tasks.py",
        """
done = []
def work(video_id):
    row = Video.objects.get(pk=video_id)
    done.append((row.status, row.lock_fence == process_video.lease.fence))
from example_project.videos.models import Video
""",
        """
video = Video.objects.create(pk=123, title="a clip", file="clip.mp4")
assert process_video(video.pk) is None
video.refresh_from_db()
assert (video.status, done) == ("ready", [("processing", True)])
assert process_video(video.pk)["reason"] == "invalid_state"
assert len(done) == 1
""",
    ),
    Around(
        "# anywhere else",
        """
order_id, charged = 7, []
def charge(number):
    from django_tasklock import locks
    charged.append((number, locks.is_locked("order:7")))
""",
        """
from django_tasklock import locks
assert charged == [(7, True)] and not lease.held and not locks.is_locked("order:7")
""",
    ),
    Around(
        "# reports.py",
        """
halves = []
def first_half():
    halves.append(1)
def second_half():
    halves.append(2)
""",
        """
assert halves == [1, 2, 1, 2] and not locks.is_locked("report:today")
assert build_report("2026-11-20") == "the report of 2026-11-20"
with lock("report:2026-11-20"):
    assert build_report("2026-11-20") is None
    try:
        with lock("report:2026-11-20"):
            raise AssertionError("two hold one lock")
    except LockNotAcquired:
        pass
""",
    ),
    Around(
        "# what process_video.delay(video_id).get() returns",
        "",
        """
shown = _
assert locks.contend("video:123", task_id=shown["holder"]).held
assert process_video(123) == shown
""",
    ),
    Around(
        "# settings.py",
        "",
        APPLY
        + """
assert locks.using("reports").acquire("today").held
assert not locks.is_locked("today")
from django_tasklock.stores import stores
assert stores["default"].takeover and not stores["reports"].takeover
""",
    ),
    Around(
        "# videos/admin.py",
        "",
        """
page = VideoAdmin(Video, admin.site)
form = page.get_form(None, fields=["title"])
assert locks.is_locked("video:123")
refused = form({"title": "another"}, instance=video)
assert not refused.is_valid() and "Locked by" in str(refused.errors)
assert locks.clear("video:123")
assert form({"title": "another"}, instance=video).is_valid()
""",
    ),
]

MOVING_STEPS = [
    Around("# before", "built = []\ndef build(shop):\n    built.append(shop)\n    return shop"),
    Around("# settings.py", "", APPLY),
    Around(
        "# after",
        "",
        """
from django_tasklock import locks
assert (rebuild(1), rebuild_moved(1), built) == (1, 1, [1, 1])
assert cache.add("rebuild-2", "locked", 60)
assert rebuild_moved(2) is None
assert locks.get("rebuild-2").token is None and locks.list() == []
lease = locks.acquire("rebuild-3")
assert rebuild(3) is None
cache.delete("rebuild-3")
assert lease.extend() is False and not lease.held
assert built == [1, 1]
""",
    ),
]


CRON_STEPS = [
    Around(
        "# reports/daily.py",
        """
import sys, types
from example_project.videos import models
sys.modules["reports"], sys.modules["reports.models"] = types.ModuleType("reports"), models
sent, fails = [], []
def send(date):
    if fails:
        raise fails.pop()
    sent.append(date)
    return 3, 9
""",
        """
assert send_daily_report("2026-11-20").videos_ready == 3
assert send_daily_report("2026-11-20") is None
assert sent == ["2026-11-20"]
""",
    ),
    Around("# settings.py", "", APPLY),
    Around(
        "# reports/once.py",
        "",
        """
import gc, os
from django.core.management import call_command
from django_tasklock.doctor import diagnose
assert once_a_day("2026-11-21") == (3, 9)
gc.collect()
assert once_a_day("2026-11-21").startswith("done")
fails.append(KeyError("no"))
try:
    once_a_day("2026-11-22")
    raise AssertionError("it failed")
except KeyError:
    pass
# Done by a process of this host that has ended, as one that cron has started.
child = os.fork()
if child == 0:
    os._exit(once_a_day("2026-11-22") != (3, 9))
assert os.waitpid(child, 0)[1] == 0
gone = [info.name for info in locks.using("once").list() if info.owner.alive() is False]
assert gone == ["daily:2026-11-22"]
assert once_a_day("2026-11-22").startswith("done")
said = {problem.what: problem.serious for problem in diagnose() if problem.kind == "owner gone"}
assert said == {"daily:2026-11-22": False}
call_command("locks", "clear", "--owner-gone", "--store", "once", "--noinput", "-v", "0")
call_command("locks", "clear", "--store", "once", "--", "daily:2026-11-21")
assert locks.using("once").list() == []
""",
    ),
]


class Site:
    """The example site, with a Redis and a database of its own."""

    def __init__(self, server: RedisServer, state: Path) -> None:
        self.server = server
        self._environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "EXAMPLE_STATE": str(state),
            "EXAMPLE_REDIS_URL": server.url,
            "EXAMPLE_REDIS_PREFIX": "example",
        }

    def run(self, *steps: tuple[str, int, str]) -> str:
        """Run sources, each with its file and line, in one process and one namespace.

        Returns what they printed.
        """
        done = subprocess.run(
            [sys.executable, "-c", RUNNER],
            input=json.dumps(steps),
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_page(self, page: Path, around: list[Around]) -> None:
        """Run all Python blocks of a page, with what is around them."""
        found = [each for each in blocks(page, "python") if each.label not in NEWCOMERS]
        assert [block.label for block in found] == [each.label for each in around]
        steps = []
        for block, each in zip(found, around, strict=True):
            text = block.text.replace("redis://127.0.0.1:6379/1", self.server.url)
            text = text.replace("time.sleep(20)", "work(video_id)")
            steps += [
                (f"before {block.label}", 1, each.before),
                (block.page, block.line, text),
                (f"after {block.label}", 1, each.after),
            ]
        self.run(*steps)


@pytest.fixture
def site(own_redis_server: RedisServer, tmp_path: Path) -> Site:
    return Site(own_redis_server, tmp_path)


def test_the_code_of_the_readme_runs(site: Site) -> None:
    site.run_page(README, README_STEPS)


def test_the_code_of_the_move_runs(site: Site) -> None:
    site.run_page(MOVING, MOVING_STEPS)


def test_the_code_for_cron_runs(site: Site) -> None:
    site.run_page(CRON, CRON_STEPS)


def test_the_commands_for_cron_are_understood() -> None:
    lines = [line for block in blocks(CRON, "text") for line in block.text.splitlines()]
    parser = load_command_class("django_tasklock", "locks").create_parser("manage.py", "locks")
    parsed = [
        vars(parser.parse_args(shlex.split(line.partition("manage.py locks ")[2])))
        for line in lines
    ]
    assert [options["argv"] for options in parsed] == [
        ["sh", "-c", "./daily.sh && sleep 300"],
        ["celery", "-A", "project", "beat"],
    ]
    daily, beat = parsed
    assert (daily["conflict_exit_code"], daily["verbosity"]) == (0, 0)
    assert (beat["ttl"], beat["wait"]) == (30, None)


def test_all_python_is_run() -> None:
    """By the three tests above, by the class below, and by ``tests/test_tutorial.py``."""
    assert {named(page) for page in PAGES if blocks(page, "python")} == {
        named(page) for page in (README, CRON, MOVING, STORES, TUTORIAL)
    }


def store_of_the_docs() -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "pages"}
    for block in blocks(STORES, "python"):
        tree = ast.parse("\n" * (block.line - 1) + block.text, block.page)
        exec(compile(tree, block.page, "exec"), namespace)
    return namespace


class TestStoreOfTheDocs(StoreContract):
    """The store that the docs show keeps the contract."""

    def make_store(self) -> BaseStore:
        store: BaseStore = store_of_the_docs()["TestMemoryStore"]().make_store()
        return store

    def test_it_implements_all_that_a_store_must(self) -> None:
        shown = store_of_the_docs()["MemoryStore"]
        for name, method in inspect.getmembers(BaseStore, inspect.isfunction):
            if "NotImplementedError" in inspect.getsource(method):
                assert name in vars(shown), f"{name} is not shown"
                theirs = list(inspect.signature(method).parameters)
                assert list(inspect.signature(vars(shown)[name]).parameters) == theirs

    def test_its_notes_and_reservations(self) -> None:
        store = self.make_store()
        token = new_token()
        store.acquire("a", token, 30, owner_record())
        holder = store.reserve("job", "1", 30, unless_held="a")
        assert isinstance(holder, LockInfo)
        assert holder.token == token
        assert store.release("a", token, None, Note("ended", "yes", 30))
        assert (store.recall("ended"), store.recall("other")) == ("yes", None)
        assert [store.tally("runs", 30), store.tally("runs", 30), store.tally("runs", 30, -1)] == [
            1, 2, 1,
        ]  # fmt: skip
        assert store.reserve("job", "1", 30, unless_held="a") is None
        assert store.reserve("job", "2", 30) == "1"
        assert store.reserve("job", "2", 30, over="1") is None
        assert (store.unreserve("job", "1"), store.unreserve("job", "2")) == (False, True)


# ------------------------------------------------------------------------------ output that is real


def test_the_output_of_the_command(site: Site) -> None:
    (block,) = (each for each in blocks(README, "console") if "manage.py" in each.text)
    shown = list(outputs(block))
    rows = [re.split(r"  +", line) for line in shown[0][1][1:]]
    said = json.loads(
        site.run(("the command", 1, program_of(rows, [each for each, _ in shown], block.text)))
    )
    for (command, expected), actual in zip(shown, said, strict=True):
        assert len(actual) == len(expected), (command, actual)
        assert list(map(comparable, actual)) == list(map(comparable, expected)), command
    assert tuple(re.split(r"  +", shown[0][1][0])) == COLUMNS


def outputs(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines of its output."""
    for part in block.text.split("$ python manage.py ")[1:]:
        command, *lines = part.splitlines()
        yield command, lines


def program_of(rows: list[list[str]], commands: list[str], text: str) -> str:
    """A program that holds the locks of these rows, and prints what the commands say.

    All videos that the text names are being worked on.
    """
    found = re.findall(r"\bvideos\.Video (\d+)|\bvideo:(\d)\b", text)
    videos = sorted({int(row or lock) for row, lock in found})
    return f"""
import io, json, shlex
from django.core.management import CommandError, call_command
from django_tasklock.lease import new_token
from django_tasklock.stores import stores
from example_project import celery
from example_project.videos.models import Video
for pk in {videos!r}:
    Video.objects.create(pk=pk, title="a clip", file="clip.mp4", status="processing")
for number, (name, _, _, place, _, task, task_id) in enumerate({rows!r}):
    host, pid = place.split(":")
    owner = {{"host": host, "pid": int(pid), "thread": "MainThread"}}
    if task != "-":
        owner |= {{"task": task, "task_id": task_id}}
    stores["default"].acquire(name, new_token(), 40.0 + number, owner)
said = []
for command in {commands!r}:
    out = io.StringIO()
    try:
        call_command(*shlex.split(command), stdout=out)
    except CommandError as error:
        out.write(f"CommandError: {{error}}\\n")
    said.append(out.getvalue().splitlines())
print(json.dumps(said))
"""


def comparable(line: str) -> list[str]:
    """A line's cells; what differs from one run to the next only by whether it is there."""
    label, colon, value = line.partition(": ")
    if colon and label in ("ttl", "acquired", "process", "token", "fence", "renewed"):
        return [label, "…" if value.strip() else ""]
    cells = re.split(r"  +", line)
    if len(cells) == len(COLUMNS) and cells[0] != COLUMNS[0]:
        cells[1] = cells[2] = cells[4] = "…"  # TTL, AGE, PROCESS
    return cells


def test_the_output_of_the_demo(site: Site) -> None:
    (block,) = (each for each in blocks(README, "text") if "doubles" in each.text)
    program = """
from example_project.demo.evidence import Evidence, VideoEvidence
from example_project.demo.screen import Screen
videos = [VideoEvidence(f"clip {n}", "ready", 6, 1, 1, 5, 0, 0, 3) for n in range(8)]
Screen(quiet_stdout=False).verdict(
    Evidence(videos, [], 3, 24, 3, 2, 1, 0, 0, 0, 0, [], []), 60.0)
"""
    said = [line.rstrip() for line in site.run(("the demo", 1, program)).splitlines()]
    expected = block.text.splitlines()
    at = said.index(expected[0], said.index("All"))
    assert said[at : at + len(expected)] == expected


def test_the_verbs_of_the_command() -> None:
    command = load_command_class("django_tasklock", "locks")
    parser: CommandParser = command.create_parser("manage.py", "locks")
    (choice,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    shown = {code(row[0])[0].split()[0]: row for row in table(README, "The command", "Verb")}
    assert set(shown) == set(choice.choices)
    text = section(README, "The command")
    for name, verb in choice.choices.items():
        for action in verb._actions:
            option = action.option_strings[0] if action.option_strings else ""
            if option.startswith("--") and action.help != argparse.SUPPRESS:
                assert option in text, f"{name} {option} is not shown"
        for option in re.findall(r"--\w[\w-]*", " ".join(shown[name])):
            assert any(option in action.option_strings for action in verb._actions), option


def test_exit_statuses_of_run() -> None:
    shown = [int(word) for row in table(README, "A command under a lock", "Exit status")
             for word in code(row[0])]  # fmt: skip
    assert shown[:3] == [HELD_ELSEWHERE, OUTAGE, LOST]


def test_the_commands_of_make() -> None:
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = README.read_text("utf-8")
    named_there = set(re.findall(r"make ([a-z-]+)", text)) & {"demo", "test", "serve"}
    assert named_there == {"demo", "test", "serve"} <= set(targets)
    (first, *_) = blocks(README, "console")
    assert re.findall(r"^\$ make (\w+)", first.text, re.MULTILINE) == ["demo", "test"]


# ------------------------------------------------------------------------------ tables of the code


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())
    return {p.name: p.default for p in parameters if p.name != "self"}


def shown_defaults(page: Path, heading: str, first: str) -> dict[str, Any]:
    """The first column's names and the second's values; an empty cell is "no default"."""
    return {
        code(name)[0]: ast.literal_eval(code(default)[0]) if default else inspect.Parameter.empty
        for name, default, _ in table(page, heading, first)
    }


@pytest.mark.parametrize(
    ("heading", "first", "actual"),
    [
        ("Locks", "Parameter", defaults_of(lock)),
        ("Guards", "Parameter", defaults_of(StatusGuard)),
        ("Tasks", "Option", OPTIONS),
    ],
)
def test_parameters_and_options(heading: str, first: str, actual: dict[str, Any]) -> None:
    assert shown_defaults(README, heading, first) == actual


def test_what_options_may_be() -> None:
    rows = {code(row[0])[0]: row[2] for row in table(README, "Tasks", "Option")}
    for option, choices in CHOICES.items():
        shown = {word.partition("=")[2] or word for word in code(rows[option])}
        assert {f'"{choice}"' for choice in choices if choice} <= shown, option


def test_settings() -> None:
    by_field = {
        field.name: field.default if field.default is not MISSING else {}
        for field in fields(conf.StoreSettings)
    }
    actual = {key: by_field[name] for key, name in conf._KEYS.items()}
    assert shown_defaults(README, "Settings", "Key") == actual
    (row,) = (row for row in table(README, "Settings", "Key") if "OPTIONS" in row[0])
    known = BaseStore.known_options | RedisStore.known_options | CacheStore.known_options
    assert {word for word in code(row[2]) if word.isupper()} == known
    store = CacheStore(conf.StoreSettings("default"))
    assert repr(store.takeover) in code(row[2])


def test_capabilities_of_the_stores() -> None:
    flags = {name for name, kind in BaseStore.__annotations__.items() if kind == "ClassVar[bool]"}
    rows = [row for row in table(README, "Stores", "") if code(row[0])]
    assert {code(row[0])[0] for row in rows} == flags
    for name, of_redis, of_cache in rows:
        flag = code(name)[0]
        assert [of_redis, of_cache] == [
            "yes" if getattr(store, flag) else "no" for store in (RedisStore, CacheStore)
        ], flag


def test_verbs() -> None:
    shown = [code(row[0])[0] for row in table(README, "Locks", "Call")]
    for call in shown:
        name, parameters = call.removeprefix("locks.").split("(", 1)
        function = getattr(LockService, name)
        actual = inspect.signature(function)
        plain = [p.replace(annotation=p.empty) for p in list(actual.parameters.values())[1:]]
        assert f"({parameters}" == str(inspect.Signature(plain)), name
    public = {name for name in vars(LockService) if not name.startswith("_")}
    for_tasks = {"alias", "store", "contend"}
    assert {call.removeprefix("locks.").split("(")[0] for call in shown} == (public - for_tasks)


def test_fields() -> None:
    text = section(README, "Locks")

    def shown(start: str) -> set[str]:
        sentence = re.search(rf"{re.escape(start)}.*?\.(?= |\n)", text)
        assert sentence, start
        return {word.split("(")[0] for word in code(sentence[0])[1:]}

    public = {name for name in dir(Lease) if not name.startswith("_")}
    assert shown("A `Lease` has") == public
    assert shown("A `LockInfo` has") == {field.name for field in fields(LockInfo)}
    owner = shown("Its `owner` has") - {"alive"}
    assert owner == {field.name for field in fields(Owner)}


def test_errors() -> None:
    rows = table(README, "Errors", "Error")
    assert {code(row[0])[0] for row in rows} == set(exceptions.__all__)
    for name, attributes, _ in rows:
        error = getattr(exceptions, code(name)[0])
        own = [] if error.__init__ in (Exception.__init__,) else list(defaults_of(error))
        assert code(attributes) == [each for each in own if each not in ("args", "kwargs")], name
    elsewhere = set(exceptions.__all__) - set(django_tasklock.__all__)
    assert len(elsewhere) == 3
    assert "all but three" in section(README, "Errors")


def test_signals(use_redis: UseRedis) -> None:
    use_redis()
    shown = {
        code(name)[0]: set(code(arguments))
        for name, arguments in table(README, "Signals and log lines", "Signal")
    }
    assert set(shown) == set(signals.__all__)
    sent: dict[str, set[str]] = {}
    senders: list[Any] = []

    def receiver(name: str) -> Callable[..., None]:
        def receive(sender: Any, signal: Any, **arguments: Any) -> None:
            senders.append(sender)
            sent[name] = set(arguments)

        return receive

    receivers = {name: receiver(name) for name in shown}
    for name, receive in receivers.items():
        signal: Signal = getattr(signals, name)
        signal.connect(receive)
    try:
        with lock("a"):
            assert locks.acquire("a") is None
        lost = locks.acquire("b")
        assert lost is not None
        assert locks.clear("b")
        assert lost.extend() is False
    finally:
        for name, receive in receivers.items():
            getattr(signals, name).disconnect(receive)
    assert sent == shown
    assert set(senders) == {LockService}


def test_system_checks() -> None:
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "django_tasklock").rglob("*.py"))
    ids = set(re.findall(r'\bid="django_tasklock\.(\w+)"', source))
    ids |= set(re.findall(r'Finding\(\s*"(\w+)"', source))
    assert {code(row[0])[0] for row in table(README, "System checks", "Id")} == ids


def test_what_it_needs() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (sentence,) = re.findall(r"It needs (.*?), or newer, and Redis", README.read_text("utf-8"))
    shown = dict(re.findall(r"([\w-]+) (\d+\.\d+)", sentence))
    assert shown.pop("Python") == re.findall(r'requires-python = ">=([\d.]+)"', project)[0]
    shown["redis"] = shown.pop("redis-py")
    (list_,) = re.findall(r"^dependencies = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    actual = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', list_))
    assert {name.lower(): version for name, version in shown.items()} == actual


# ------------------------------------------------------------------------------ the twenty cases


def test_each_hard_case_has_a_line_and_its_tests() -> None:
    lines = re.findall(r"^(\d+)\. (.+)$", section(README, "What happens when…"), re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, 21))
    for number, line in lines:
        found = re.findall(r"\[`(\w+)`\]\(([\w/.]+)\)", line)
        assert found, f"case {number} names no test"
        for name, path in found:
            assert name.startswith(f"test_{int(number):02}_")
            assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{path} has no {name}"


# ------------------------------------------------------------------------------ numbers


def test_times_of_late_copies() -> None:
    kept = {row[0][:20]: row[1] for row in table(CELERY, "Late copies", "What")}
    assert kept["A note that the rele"].startswith("An hour,")
    assert delivery.REMEMBERED_ALONE == 3600
    assert kept["The same note, where"].startswith("Two minutes.")
    assert delivery.REMEMBERED == 120
    assert "a day by default" in kept["The result backend h"]
    assert Celery("defaults", set_as_current=False).conf.result_expires.total_seconds() == 86400
    text = section(CELERY, "Late copies")
    assert "The count is kept for a day" in section(CELERY, "Attempts")
    assert delivery.ATTEMPTS_KEPT == 86400
    assert "waits for a second" in text
    assert run.A_MOMENT == delivery.AN_INSTANT == 1
    assert "a minute and half the visibility timeout at most" in text
    assert requeue.LONGEST_COPY_DELAY == 60
    assert "about half a second, then after twice as long each time, up to about 15 s" in section(
        README, "Tasks"
    )
    assert (requeue.FIRST_DELAY, requeue.LONGEST_DELAY) == (0.5, 15)


def test_memory(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    """Within a third: host names, versions and allocators differ."""
    use_redis(own_redis_server.url)
    store, count = stores["default"], 5000
    shown = {row[0].split(",")[0]: int(row[1]) for row in table(CELERY, "Memory", "")}
    with redis.Redis(port=own_redis_server.port) as client:

        def used() -> int:
            info: Any = client.info("memory")
            return int(info["used_memory"])

        def measured(write: Callable[[int], Any]) -> float:
            before = used()
            for number in range(count):
                write(number)
            return (used() - before) / count

        owner = owner_record("videos.tasks.process_video", "0f0d6b0e-6b3e-4a67-9a4c-2f7d8d1f4f55")
        task_id = "0f0d6b0e-6b3e-4a67-9a4c-{:012x}".format
        actual = {
            "a held lock": measured(
                lambda n: store.acquire(f"video:{n}", new_token(), 3600, owner)
            ),
            "the note of an ended run": measured(
                lambda n: store.remember(Note(f"run {task_id(n)}:0", RunNote.ended(1), 3600))
            ),
            "the note of a run that has begun": measured(
                lambda n: store.remember(Note(f"run {task_id(n)}:1", RunNote.started(1), 86400))
            ),
        }
    print(actual)
    assert set(actual) == set(shown)
    for what, size in shown.items():
        assert size * 2 / 3 < actual[what] < size * 4 / 3, what


# ------------------------------------------------------------------------------ Redis


def test_keys_in_redis(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    use_redis(own_redis_server.url)
    prefix = cache.make_key("").partition(":")[0]
    shown = {code(row[0])[0]: row[1] for row in table(STORES, "The keys in Redis", "Key")}
    lease = locks.acquire("video:123", ttl=60)
    assert lease is not None
    stores["default"].remember(Note("a note", "text", 60))
    assert stores["default"].reserve("queued job", "1", 60) is None
    line = stores["default"].line("video:123", new_token(), 60, owner_record())
    assert line is not None
    line.ask()
    with redis.Redis(port=own_redis_server.port, decode_responses=True) as client:
        keys: Any = client.keys("*")
        kinds = {"zset": "sorted set"}
        found = {}
        for key in keys:
            kind = str(client.type(key))
            key = re.sub("note .*", "note …", key.removeprefix(prefix))
            found[key] = kinds.get(kind, kind)
    line.leave()
    assert found == shown


def test_rights(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    (block,) = blocks(STORES, "text")
    with redis.Redis(port=own_redis_server.port) as client:
        client.execute_command(*shlex.split(block.text))
    use_redis(own_redis_server.url.replace("//", "//web:secret@"))
    cache.set("mine", 1)
    assert cache.get("mine") == 1
    lease = locks.acquire("a", ttl=30)
    assert lease is not None
    assert lease.extend()
    handed: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: handed.append(locks.acquire("a", wait=20)))
    waiter.start()
    while (info := locks.get("a")) is not None and not info.waiters:
        assert waiter.is_alive()
    assert lease.release()
    waiter.join()
    assert handed[0] is not None
    assert [info.name for info in locks.list()] == ["a"]
    assert list(stores["default"].scan())
    assert locks.count() == 1
    assert locks.clear("a")
    store = stores["default"]
    store.remember(Note("note", "text", 10))
    assert store.recall("note") == "text"
    assert store.tally("count", 10) == 1
    assert store.reserve("job", "1", 10) is None
    assert store.reserve("queued job", "1", 10) is None
    assert [key for key, _, _ in store.reservations()] == ["queued job"]
    assert store.unreserve("job", "1")
    assert all(finding.id in ("clock", "latency") for finding in store.check())


# ------------------------------------------------------------------------------ words and links


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for text, target in links(page):
        path, _, anchor = target.partition("#")
        assert "://" not in target, f"{text}: no hosts"
        there = (page.parent / path).resolve() if path else page
        assert there.is_file() or (there.is_dir() and not anchor), f"{text}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{text}: {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    targets = {(README.parent / target.partition("#")[0]).resolve() for _, target in links(README)}
    assert set(PAGES) - {README} <= targets


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=named
)
def test_words(page: Path) -> None:
    """One word for one thing, as everywhere in the project."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    wrong = re.findall(
        r"\b(?:unlock\w*|mutex\w*|reset\w*|flush\w*|refresh\w*|touch\w*|free[sd]|freeing"
        r"|timeouts?)\b",
        text.replace("visibility timeout", ""),
        re.IGNORECASE,
    )
    assert wrong == []
    assert not re.search(r"https?://(?!keepachangelog|semver)", page.read_text("utf-8"))
