"""What the README and the docs say is so: their code runs, their tables are those of the code."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
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
    Event,
    Lease,
    LockInfo,
    LockService,
    StoreUnavailable,
    conf,
    exceptions,
    lock,
    locks,
    signals,
)
from django_tasklock._engine.acquiring import Acquiring
from django_tasklock._engine.all_or_none import AllOrNone
from django_tasklock._engine.handing_on import HandingOn
from django_tasklock._engine.history import Remembering
from django_tasklock._engine.hold import Holding
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.celery import LockedTask, delivery, received, requeue, taking, turns
from django_tasklock.celery.options import CHOICES, OPTIONS
from django_tasklock.celery.runnote import RunNote
from django_tasklock.cli.run_command import HELD_ELSEWHERE, LOST, OUTAGE
from django_tasklock.cli.tables import LOCK_COLUMNS
from django_tasklock.guards import StatusGuard
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Note
from django_tasklock.stores.cache import CacheStore
from django_tasklock.stores.cluster import RedisClusterStore
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.memory import MemoryStore
from django_tasklock.stores.quorum import QuorumStore
from django_tasklock.stores.redis import RedisStore
from django_tasklock.stores.zookeeper import ZooKeeperStore
from django_tasklock.testing import outage
from tests.conftest import UseRedis
from tests.page_site import Site
from tests.pages import (
    DOCS,
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
    toctree,
)
from tests.servers import RedisServer
from tests.waiting import until

STORES = (
    RedisStore,
    RedisClusterStore,
    CacheStore,
    DatabaseStore,
    ZooKeeperStore,
    QuorumStore,
    MemoryStore,
)

API = DOCS / "reference/api.md"
SETTINGS = DOCS / "reference/settings.md"
TASKS = DOCS / "reference/task-options.md"
COMMAND = DOCS / "reference/command.md"
CHECKS = DOCS / "reference/checks.md"
SIGNALS = DOCS / "reference/signals.md"
REDIS = DOCS / "operations/redis.md"
SIZING = DOCS / "operations/sizing.md"
RETRIES = DOCS / "howto/retries.md"
CASES = DOCS / "explanation/twenty-cases.md"
GUARANTEES = DOCS / "explanation/guarantees.md"


@pytest.fixture
def site(own_redis_server: RedisServer, tmp_path: Path) -> Site:
    return Site(own_redis_server, tmp_path)


# ------------------------------------------------------------------------------ output that is real


def test_the_output_of_the_command(site: Site) -> None:
    (block,) = blocks(COMMAND, "console")
    shown = list(outputs(block))
    rows = [re.split(r"  +", line) for line in shown[0][1][1:]]
    said = json.loads(
        site.run(("the command", 1, program_of(rows, [each for each, _ in shown], block.text)))
    )
    for (command, expected), actual in zip(shown, said, strict=True):
        assert len(actual) == len(expected), (command, actual)
        assert list(map(comparable, actual)) == list(map(comparable, expected)), command
    assert tuple(re.split(r"  +", shown[0][1][0])) == LOCK_COLUMNS


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
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from example_project import celery
from example_project.videos.models import Video
for pk in {videos!r}:
    Video.objects.create(pk=pk, title="a clip", file="clip.mp4", status="processing")
for number, (name, _, _, _, place, _, task, task_id) in enumerate({rows!r}):
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
    if len(cells) == len(LOCK_COLUMNS) and cells[0] != LOCK_COLUMNS[0]:
        cells[1] = cells[2] = cells[5] = "…"  # TTL, AGE, PROCESS
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
    shown = {code(row[0])[0].split()[0]: row for row in table(COMMAND, "Verbs", "Verb")}
    assert set(shown) == set(choice.choices)
    text = section(COMMAND, "Verbs")
    for name, verb in choice.choices.items():
        for action in verb._actions:
            option = action.option_strings[0] if action.option_strings else ""
            if option.startswith("--") and action.help != argparse.SUPPRESS:
                assert option in text, f"{name} {option} is not shown"
        for option in re.findall(r"--\w[\w-]*", " ".join(shown[name])):
            assert any(option in action.option_strings for action in verb._actions), option


def test_exit_statuses_of_run() -> None:
    shown = [int(word) for row in table(COMMAND, "A command under a lock", "Exit status")
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
    ("page", "heading", "first", "actual"),
    [
        (API, "lock", "Parameter", defaults_of(lock)),
        (TASKS, "Guards", "Parameter", defaults_of(StatusGuard)),
        (TASKS, "Options", "Option", OPTIONS),
    ],
    ids=["lock", "guard", "task"],
)
def test_parameters_and_options(
    page: Path, heading: str, first: str, actual: dict[str, Any]
) -> None:
    assert shown_defaults(page, heading, first) == actual


def test_what_options_may_be() -> None:
    rows = {code(row[0])[0]: row[2] for row in table(TASKS, "Options", "Option")}
    for option, choices in CHOICES.items():
        shown = {word.partition("=")[2] or word for word in code(rows[option])}
        assert {f'"{choice}"' for choice in choices if choice} <= shown, option


def test_settings() -> None:
    by_field = {
        field.name: field.default if field.default is not MISSING else {}
        for field in fields(conf.StoreSettings)
    }
    actual = {key: by_field[name] for key, name in conf._FIELDS_BY_KEY.items()}
    assert shown_defaults(SETTINGS, "Keys", "Key") == actual


def test_options_of_the_stores() -> None:
    shown: dict[str, set[str]] = {store.__name__: set() for store in STORES}
    named: list[str] = []
    for whose, options, *_ in table(SETTINGS, "Options", "Store"):
        if whose:  # An empty cell stands for the one above.
            named = list(shown) if whose == "all" else code(whose)
        for name in named:
            shown[name] |= set(code(options))
    known = BaseStore.known_options
    assert shown == {store.__name__: set(known | store.known_options) for store in STORES}
    takeover = table(SETTINGS, "Options", "Store")[0][2]
    assert [repr(CacheStore(conf.StoreSettings("default")).takeover)] == code(takeover)


def test_capabilities_of_the_stores() -> None:
    flags = {name for name, kind in BaseStore.__annotations__.items() if kind == "ClassVar[bool]"}
    rows = [row for row in table(SETTINGS, "Stores", "") if code(row[0])]
    assert {code(row[0])[0] for row in rows} == flags
    for name, *said in rows:
        flag = code(name)[0]
        assert said == ["yes" if getattr(store, flag) else "no" for store in STORES], flag


def test_verbs() -> None:
    shown = [code(row[0])[0] for row in table(API, "locks", "Call")]
    for call in shown:
        name, parameters = call.removeprefix("locks.").split("(", 1)
        function = getattr(LockService, name)
        actual = inspect.signature(function)
        plain = [p.replace(annotation=p.empty) for p in list(actual.parameters.values())[1:]]
        assert f"({parameters}" == str(inspect.Signature(plain)), name
    classes = (LockService, Acquiring, AllOrNone, Holding, HandingOn, Remembering)
    public = {name for one in classes for name in vars(one) if not name.startswith("_")}
    for_tasks = {"alias", "store", "try_acquire", "try_hold", "contend"}
    for_tasks |= {"detach", "take_back", "try_adopt"}
    assert {call.removeprefix("locks.").split("(")[0] for call in shown} == (public - for_tasks)


def test_fields() -> None:
    text = section(API, "Lease") + section(API, "LockInfo")

    def shown(start: str, text: str = text) -> set[str]:
        sentence = re.search(rf"{re.escape(start)}.*?\.(?= |\n)", text)
        assert sentence, start
        return {word.split("(")[0] for word in code(sentence[0])[1:]}

    public = {name for name in dir(Lease) if not name.startswith("_")}
    assert shown("A `Lease` has") == public
    assert shown("An `Event` has", section(API, "Event")) == {field.name for field in fields(Event)}
    assert shown("A `LockInfo` has") == {field.name for field in fields(LockInfo)}
    owner = shown("Its `owner` has") - {"alive"}
    assert owner == {field.name for field in fields(Owner)}


def test_errors() -> None:
    rows = table(API, "Errors", "Error")
    # By class, since an old name may still be exported beside the new one.
    exported = {getattr(exceptions, name) for name in exceptions.__all__}
    assert {getattr(exceptions, code(row[0])[0]) for row in rows} == exported
    for name, attributes, _ in rows:
        error = getattr(exceptions, code(name)[0])
        own = [] if error.__init__ in (Exception.__init__,) else list(defaults_of(error))
        assert code(attributes) == [each for each in own if each not in ("args", "kwargs")], name


def test_all_errors_can_be_imported_from_the_package() -> None:
    assert set(exceptions.__all__) <= set(django_tasklock.__all__)
    for name in exceptions.__all__:
        assert getattr(django_tasklock, name) is getattr(exceptions, name)


def test_signals(use_redis: UseRedis) -> None:
    use_redis()
    shown = {
        code(name)[0]: set(code(arguments))
        for name, arguments in table(SIGNALS, "Signals", "Signal")
    }
    sendable = {name for name in signals.__all__ if isinstance(getattr(signals, name), Signal)}
    assert set(shown) == sendable
    sent: dict[str, set[str]] = {}
    senders: list[Any] = []

    def receiver(name: str) -> Callable[..., None]:
        def receive(sender: Any, signal: Any, **arguments: Any) -> None:
            senders.append(sender)
            sent[name] = set(arguments)

        return receive

    @Celery("signals", set_as_current=False).task(base=LockedTask, lock_name="e", name="not-run")
    def not_run() -> None:
        pass

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
        assert locks.hold("c", 60) is not None
        with outage(), pytest.raises(StoreUnavailable):
            locks.acquire("d")
        with lock("e"):
            assert not_run()["status"] == "skipped"
    finally:
        for name, receive in receivers.items():
            getattr(signals, name).disconnect(receive)
    assert sent == shown
    assert set(senders) == {LockService, not_run.__class__}


def test_outcomes_of_tasks() -> None:
    shown = {
        code(outcome)[0]: tuple(code(reasons))
        for outcome, reasons, _ in table(SIGNALS, "Calls that did not run", "Outcome")
    }
    assert shown == signals.OUTCOMES


def test_system_checks() -> None:
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "django_tasklock").rglob("*.py"))
    ids = set(re.findall(r'\bid="django_tasklock\.(\w+)"', source))
    ids |= set(re.findall(r'Finding\(\s*"(\w+)"', source))
    headings = ("Settings and tasks", "The live server")
    shown = [code(row[0])[0] for heading in headings for row in table(CHECKS, heading, "Id")]
    # In full, as SILENCED_SYSTEM_CHECKS needs them.
    assert sorted(shown) == sorted(f"django_tasklock.{name}" for name in ids)


def test_what_it_needs() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (sentence,) = re.findall(r"It needs (.*?), or newer\.", README.read_text("utf-8"))
    shown = dict(re.findall(r"([\w-]+) (\d+\.\d+)", sentence))
    assert shown.pop("Python") == re.findall(r'requires-python = ">=([\d.]+)"', project)[0]
    shown["redis"] = shown.pop("redis-py")
    (list_,) = re.findall(r"^dependencies = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    actual = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', list_))
    assert {name.lower(): version for name, version in shown.items()} == actual


# ------------------------------------------------------------------------------ the twenty cases


def test_each_hard_case_has_a_line_and_its_tests() -> None:
    lines = re.findall(r"^(\d+)\. (.+)$", CASES.read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, 21))
    for number, line in lines:
        found = linked_tests(line)
        assert found, f"case {number} names no test"
        assert all(name.startswith(f"test_{int(number):02}_") for name, _ in found)


@pytest.mark.parametrize("page", [CASES, GUARANTEES], ids=lambda page: page.stem)
def test_all_tests_that_are_named_exist(page: Path) -> None:
    for name, path in linked_tests(page.read_text("utf-8")):
        source = (page.parent / path).read_text("utf-8")
        assert f"def {name}(" in source, f"{path} has no {name}"


def test_each_guarantee_names_its_tests() -> None:
    rows = table(GUARANTEES, "What is guaranteed", "Guarantee")
    assert len(rows) > 10
    for guarantee, tests in rows:
        assert linked_tests(tests), guarantee


def linked_tests(text: str) -> list[tuple[str, str]]:
    """The tests that a text links to, each with its file."""
    return re.findall(r"\[`(test_\w+)`\]\(([\w/.]+)\)", text)


# ------------------------------------------------------------------------------ numbers


def test_times_of_redeliveries() -> None:
    kept = {row[0][:20]: row[1] for row in table(TASKS, "Redeliveries", "What")}
    assert kept["A note that the rele"].startswith("An hour,")
    assert received.END_NOTE_SECONDS == 3600
    assert kept["The same note, where"].startswith("Two minutes.")
    assert received.END_NOTE_WITH_RESULT_SECONDS == 120
    assert "a day by default" in kept["The result backend h"]
    assert Celery("defaults", set_as_current=False).conf.result_expires.total_seconds() == 86400
    text = section(TASKS, "Redeliveries")
    assert "The count is kept for a day" in section(TASKS, "Attempts")
    assert received.START_NOTE_SECONDS == 86400
    assert "waits for a second" in text
    assert taking.REDELIVERY_WAIT_SECONDS == delivery.RESULT_CHECK_SECONDS == 1
    assert "a minute and half the visibility timeout at most" in text
    assert requeue.LONGEST_REDELIVERY_DELAY_SECONDS == 60
    assert "about half a second, then after twice as long each time, up to about 15 s" in section(
        RETRIES, "How a message comes back"
    )
    assert turns.FIRST_RETRY_DELAY_SECONDS == 0.5
    assert turns.LONGEST_RETRY_DELAY_SECONDS == 15


def test_memory(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    """Within a third: host names, versions and allocators differ."""
    use_redis(own_redis_server.url)
    store, count = stores["default"], 5000
    shown = {row[0].split(",")[0]: int(row[1]) for row in table(SIZING, "Memory", "")}
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
                lambda n: store.set_note(Note(f"run {task_id(n)}:0", RunNote.ended(1), 3600))
            ),
            "the note of a run that has begun": measured(
                lambda n: store.set_note(Note(f"run {task_id(n)}:1", RunNote.started(1), 86400))
            ),
        }
    print(actual)
    assert set(actual) == set(shown)
    for what, size in shown.items():
        assert size * 2 / 3 < actual[what] < size * 4 / 3, what


# ------------------------------------------------------------------------------ Redis


def test_keys_in_redis(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    use_redis(own_redis_server.url, {"OPTIONS": {"HISTORY": 100}})
    prefix = cache.make_key("").partition(":")[0]
    shown = {code(row[0])[0]: row[1] for row in table(REDIS, "The keys in Redis", "Key")}
    assert locks.acquire("video:123", ttl=60) is not None
    assert locks.clear("video:123")
    lease = locks.acquire("video:123", ttl=60)
    assert lease is not None
    stores["default"].set_note(Note("a note", "text", 60))
    assert stores["default"].reserve("queued job", "1", 60) is None
    waiter = stores["default"].waiter("video:123", new_token(), 60, owner_record())
    assert waiter is not None
    waiter.ask()
    assert locks.acquire("video:123") is None
    until(lambda: locks.history())
    with redis.Redis(port=own_redis_server.port, decode_responses=True) as client:
        keys: Any = client.keys("*")
        kinds = {"zset": "sorted set"}
        found = {}
        for key in keys:
            kind = str(client.type(key))
            key = re.sub("note .*", "note …", key.removeprefix(prefix))
            found[key] = kinds.get(kind, kind)
    waiter.leave()
    assert found == shown


def test_rights(use_redis: UseRedis, own_redis_server: RedisServer) -> None:
    (block,) = blocks(REDIS, "text", "Rights")
    with redis.Redis(port=own_redis_server.port) as client:
        client.execute_command(*shlex.split(block.text))
    use_redis(own_redis_server.url.replace("//", "//web:secret@"), {"OPTIONS": {"HISTORY": 100}})
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
    assert "cleared" in [event.kind for event in locks.history()]
    store = stores["default"]
    store.set_note(Note("note", "text", 10))
    assert store.get_note("note") == "text"
    assert store.reserve("job", "1", 10) is None
    assert store.reserve("queued job", "1", 10) is None
    assert [key for key, _, _ in store.reservations()] == ["queued job"]
    assert store.unreserve("job", "1")
    assert all(finding.id in ("clock", "latency") for finding in store.check())


# ------------------------------------------------------------------------------ words and links


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.zh-Hans.md"], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for text, target in links(page):
        path, _, anchor = target.partition("#")
        assert "://" not in target, f"{text}: no hosts"
        there = (page.parent / path).resolve() if path else page
        assert there.is_file() or (there.is_dir() and not anchor), f"{text}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{text}: {target}"


def test_every_page_can_be_found() -> None:
    """From the contents of the docs; and from the README, but for the pages that list others."""
    pages = {page for page in PAGES if page not in (README, DOCS / "index.md")}
    assert toctree() | toctree(DOCS / "moving/index.md") == pages
    targets = {(README.parent / target.partition("#")[0]).resolve() for _, target in links(README)}
    assert {page for page in pages if page.name != "index.md"} <= targets


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 150


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
    assert not re.search(
        r"https?://(?!keepachangelog|semver|flower\.example)", page.read_text("utf-8")
    )
