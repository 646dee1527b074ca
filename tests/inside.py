"""
What tests do with the inside of the package; whoever changes that changes this file alone.

* At the top is what needs neither Django's apps nor Celery nor a store's library: this file may be
  imported before Django is set up.
* `LATER` names the rest. It is imported when a test asks for it; to mypy it is ``Any``.
* Below are the tests' own words for what they do with all that, a heading for each room.
"""

from __future__ import annotations

import gc
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

import pytest

from django_tasklock import Lease, LockInfo
from django_tasklock._engine import aio, history, jobs, waiting
from django_tasklock._engine import keeper as keeper_module
from django_tasklock._engine.acquiring import Acquiring, How
from django_tasklock._engine.keeper import keeper_of as keeper_of
from django_tasklock._engine.lease import Use
from django_tasklock._engine.own_token import OwnToken
from django_tasklock._engine.stopping import call_until_lost as call_until_lost
from django_tasklock._engine.waiting import blocking
from django_tasklock._values import clock as clock
from django_tasklock._values import owner as owner_module
from django_tasklock._values import processes
from django_tasklock._values.arguments import LONGEST_TTL_SECONDS as LONGEST_TTL_SECONDS
from django_tasklock._values.arguments import permit_names as permit_names
from django_tasklock._values.lock_info import KINDS as KINDS
from django_tasklock._values.lock_info import Event as Event
from django_tasklock._values.lock_info import Kind
from django_tasklock._values.owner import COOLING as COOLING
from django_tasklock._values.owner import LARGEST_PID as LARGEST_PID
from django_tasklock._values.owner import Owner as Owner
from django_tasklock._values.owner import operator_record as operator_record
from django_tasklock._values.owner import owner_record as owner_record
from django_tasklock._values.tokens import new_token as new_token
from django_tasklock._values.tokens import read_handle as read_handle
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from django_tasklock.stores.records import noting as noting

LATER = {
    # Operators, the command, the admin and the tables of the docs
    "Outcome": "operators.held:Outcome",
    "clear_seen": "operators.held:clear_seen",
    "digest_of": "operators.held:digest_of",
    "reserved_key": "stores.records:key_of",
    "key_of_reservation": "stores.records:key_of",
    "lock_of": "admin.reading:lock_of",
    "seen_lock": "admin.reading:seen_lock",
    "PROBLEMS": "operators.problems:KINDS",
    "COUNTERS": "contrib.measures:COUNTERS",
    "HISTOGRAMS": "contrib.measures:HISTOGRAMS",
    "MOST_LABELS": "contrib.measures:MOST_LABELS",
    "age": "_values.words:age",
    "label_of": "contrib.measures:label_of",
    "AT_ZERO": "contrib.measures:AT_ZERO",
    "GAUGES": "contrib.prometheus.state:GAUGES",
    "STATES": "contrib.prometheus.state:STATES",
    "LockCollector": "contrib.prometheus.state:LockCollector",
    # Celery
    "active_apps": "_compat.celery:active_apps",
    "counts_parts_once": "_compat.celery:counts_parts_once",
    "queue_of_calls": "_compat.celery:queue_of_calls",
    "came_back": "celery.note:CameBack",
    "OPTIONS": "celery.options:OPTIONS",
    "check_call": "celery.option_checks:check_call",
    "explain_call": "celery.for_operators:explain_call",
    "duplicate_of": "celery.for_operators:duplicate_of",
    "check_tasks": "celery.checks:check_tasks",
}
REPLACED = {
    "ask_again_after": ["_engine.waiting.LONGEST_SILENCE_SECONDS"],
    "poll_after": ["_engine.waiting.FIRST_POLL_SECONDS", "_engine.waiting.MAX_POLL_SECONDS"],
    "look_at_most": ["operators.doctor.MOST_GONE"],
    "look_often": ["_engine.jobs.LOOK_SECONDS"],
    "recall_after": ["_engine.stopping.RECALL_SECONDS"],
    "keep_events_for": ["_engine.history.BATCH_SECONDS"],
    "listen_for": ["stores.redis.listener.SILENCE_SECONDS"],
    "wait_for_connections": ["stores.redis.connections.POOL_WAIT_SECONDS"],
    "connect_by": ["_compat.redis.connect"],
    "interrupt_ends_of_subscriptions": ["stores.redis.listener.Subscription.end"],
    "list_in_little_scripts": [
        f"stores.redis.store.{each}"
        for each in ("FIRST_LEASES", "LEASES_PER_SCRIPT", "NAMES_PER_SCRIPT")
    ],
}
"""What a test has be another, as in ``poll_after(monkeypatch, seconds=10)``."""
FIXED = {
    "extend_one_by_one": ("_engine.keeper.LEASES_PER_CALL", 1),
    "forget_ends_at_once": ("celery.note.END_NOTE_WITH_RESULT_SECONDS", 0.001),
    "patient_main_process": ("celery.request.CLEAR_WAIT_SECONDS", 60.0),
    "pages_are_old": ("admin.health.SHOWN_SECONDS", -1),
}
"""The same, with the number, as in ``pages_are_old(monkeypatch)``."""


def __getattr__(name: str) -> Any:
    """What is named in `LATER`, so that ``from tests.inside import diagnose`` is all one writes."""
    if name in REPLACED:
        return partial(_have, REPLACED[name])
    if name in FIXED:
        place, number = FIXED[name]
        return partial(_have, [place], seconds=number)
    if name not in LATER:
        raise AttributeError(f"tests.inside has no {name!r}: add it to LATER, or a function")
    return pkgutil.resolve_name(f"django_tasklock.{LATER[name]}")


def _have(places: list[str], monkeypatch: pytest.MonkeyPatch, seconds: Any) -> None:
    for place in places:
        monkeypatch.setattr(f"django_tasklock.{place}", seconds)


# -- the engine


def asked(
    name: str, *, task: str | None = None, task_id: str | None = None, token: str | None = None,
    note: Note | None = None, **options: Any,
) -> Lease | LockInfo:  # fmt: skip
    """What becomes of a task's question for its lock."""
    said: dict[str, Any] = {"task": task, "task_id": task_id} if task or task_id else {}
    use = Use(**said)
    won = blocking(Acquiring(How(**options), name, use, token=token, note=note).steps())
    return won.alone() if isinstance(won, Lease) else won


def kept(alias: str = "default") -> int:
    """How many tokens and notes the thread of a store looks after."""
    keeper = keeper_of(stores[alias])
    return len(keeper.table) + len(keeper.jobs)


def lose(lease: Lease) -> None:
    """Find that a lease is lost, as the store's thread does."""
    keeper_of(stores[lease.store]).lost(lease._own, "the store no longer has it")


def give_up(lease: Lease, note: Note | None = None) -> None:
    """Leave a lease to that thread, as a call does that was interrupted."""
    lease._own.note = note
    lease.give_up()


def unreserve_later(key: str, text: str) -> None:
    """Leave a note to that thread, as a call does that got no answer."""
    keeper_of(stores["default"]).unreserve_later(key, text, 600.0)


def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stores' threads ask again soon where there was no answer, and look soon for tokens whose
    question may still be on its way."""
    monkeypatch.setattr(jobs, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(keeper_module, "LATER_LOOKS_SECONDS", (0.02, 0.04, 0.08))


def no_thread_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system start no thread the next time that a store's thread is to be started."""
    real, failed = vars(jobs)["start_thread"], list[Any]()

    def start_thread(target: Any) -> None:
        if not failed:
            failed.append(target)
            raise RuntimeError("can't start new thread")
        real(target)

    monkeypatch.setattr(jobs, "start_thread", start_thread)


def as_before_a_checkpoint(monkeypatch: pytest.MonkeyPatch, fields: Mapping[str, Any]) -> None:
    """Have this process know of itself what it was before it was restored, and not read it yet."""
    known = {**owner_module.this_process(), **fields}
    monkeypatch.setattr(owner_module, "_this_process", known)


def forget_all() -> None:
    """Have all stores' threads forget what they look after."""
    for each in jobs.all_jobs():
        for kept in (each.tokens, each.new, each.planned, each.notes):
            kept.clear()
        each.events.clear()


def is_renewed(*names: str) -> bool:
    """Whether a lease on one of these locks, or on any, is to be extended by this process."""
    tokens = [own for each in jobs.all_jobs() for own in list(each.tokens.values())]
    found = [own for own in tokens if own.renew and own.since is not None]
    return any(not names or {*names} & {*own.names} for own in found)


def looks_before(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Have the store's thread look just before this method of a lease is called."""
    method = getattr(Lease, verb)

    def called(lease: Lease) -> object:
        lease._keeper.jobs.work()
        return method(lease)

    monkeypatch.setattr(Lease, verb, called)


def given_up(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the store's threads, or callers, are about to give up, each time anew."""
    tokens: list[object] = []
    give_up = keeper_module.Keeper.give_up

    def noted(keeper: keeper_module.Keeper, own: OwnToken, **options: bool) -> None:
        tokens.append(own)
        give_up(keeper, own, **options)

    monkeypatch.setattr(keeper_module.Keeper, "give_up", noted)
    return tokens


def note(kind: Kind, name: str, owner: Mapping[str, Any] | Owner) -> None:
    """Have an event written."""
    history.note_event(stores["default"], kind, name, owner)


def write_some(most: int) -> float | None:
    """Write so many of the events that are queued; when the thread is to go on."""
    return history.write_events(stores["default"], most)


def write_events() -> None:
    """Write the events at once."""
    history.write_events(stores["default"])


def fork_untold(fork: Callable[[], int]) -> int:
    """Fork, and have the package's handler of `os.register_at_fork` find nothing to do."""
    known, processes._all = processes._all, WeakValueDictionary()
    try:
        return fork()
    finally:
        processes._all = known


# -- what operators, the command and the admin share


def operators(module: str) -> Any:
    """A module of what the command and the admin share."""
    return import_module(f"django_tasklock.operators.{module}")


def diagnose(aliases: Sequence[str] | None = None) -> list[Any]:
    """What the doctor finds."""
    return [*operators("doctor").diagnose(aliases)]


diagnosed = diagnose


def when_messages_are_sought(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Callable[..., Any], Any], Any]
) -> None:
    """Have ``answer(seek, jobs)`` say which messages of reservations are gone."""
    gone = import_module("django_tasklock.celery.for_operators")
    monkeypatch.setattr(gone, "gone_messages", partial(answer, gone.gone_messages))


def seek_messages_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have messages be sought for so long."""
    gone = import_module("django_tasklock.celery.for_operators")
    monkeypatch.setattr(gone, "SEEK_SECONDS", seconds)


def clear_after_the_first(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Have ``locks clear`` fail when it has cleared one lock."""

    cleared: list[Any] = []

    def stops(*args: Any, **options: Any) -> Any:
        if cleared:
            raise error
        cleared.append(operators("held").clear_seen(*args, **options))
        return cleared[0]

    monkeypatch.setattr("django_tasklock.cli.clear_and_hold.clear_seen", stops)


def instead_of_clearing(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Have the pages do this when they are to clear a lock, and clear none."""

    def clear_seen(*_: Any, **__: Any) -> Any:
        do()
        return operators("held").Outcome.CHANGED_HANDS

    monkeypatch.setattr("django_tasklock.admin.clear_and_hold.clear_seen", clear_seen)


@contextmanager
def counting() -> Iterator[None]:
    """The counters for Prometheus, which count until the block ends; they have met no label."""
    counters = import_module("django_tasklock.contrib.prometheus.apps").counters
    counters.connect()
    try:
        with patch("django_tasklock.contrib.measures._labels", set()):
            yield
    finally:
        for signal, receiver in counters.receivers.items():
            signal.disconnect(receiver)


# -- a guarded row and its run


def give_up_row(task: Any, args: list[Any], fence: int | None) -> None:
    """Mark the row of a call that will not run again as failed; ``fence``: of its lock's lease."""
    from django_tasklock.celery.message import Message
    from django_tasklock.celery.row import Row

    Row(Message(task, task.request, args, {})).refuse(fence)


def wait_in_slices(seconds: float) -> object:
    """What a run of a task does in a pause of its waiting."""
    from django_tasklock._engine.waiting import Pause
    from django_tasklock.celery import run

    return vars(run)["_wait"](Pause(seconds))


def before_the_release(monkeypatch: pytest.MonkeyPatch, do: Callable[[Lease], object]) -> None:
    """Have something done with the lease of a task's run just before that releases it."""
    from django_tasklock.celery.run import Run

    release = Run._release

    def released(run: Run, lease: Lease) -> bool:
        do(lease)
        return release(run, lease)

    monkeypatch.setattr(Run, "_release", released)


# -- the life of a message


def children_of(worker: Any) -> Any:
    """What watches the pool children of a worker, of which ``worker`` is the consumer."""
    from django_tasklock.celery.request import Children

    children = Children()
    children.use(worker)
    return children


def deaths_of(request: Any) -> int:
    """How many runs of its message the store knows to have started, and not to have ended."""
    from django_tasklock.celery.note import RunNote

    attempts = request.ours.attempts
    return RunNote.read(stores["default"].get_note(attempts.key)).starts


def follow_up(task: Any, name: str = "job:1") -> str | None:
    """What the store's note says of the follow-up of runs under this lock."""
    reserved = task.conflict.reserves(SimpleNamespace(task=task, name=name, id="", ours={}))
    return next((task.locks.store.get_note(key) for key in reserved), None)


def shut_down_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no run of this process and its children learn of a shutdown that a test begins."""
    monkeypatch.setattr("django_tasklock.celery.run._shared", bytearray(8))


def in_pauses(monkeypatch: pytest.MonkeyPatch, pause: Callable[[], None]) -> None:
    """What happens in the pause before a message is sent once more, or is rejected."""
    import time
    from types import SimpleNamespace

    own = SimpleNamespace(sleep=lambda _seconds: pause(), time=time.time)
    monkeypatch.setattr("django_tasklock.celery.requeue.time", own)


def forget_threads_that_are_awaited() -> None:
    """End the use of the threads in which awaited calls are made: they keep their settings."""
    aio._pool.cache_clear()


# -- the tables of the docs


def usual_options() -> dict[str, Any]:
    """What a caller may say of a lock, with the defaults."""
    return {each.name: each.default for each in signature(How).parameters.values()}


# -- conflicts, and messages that wait


def name_follow_up(task: Any, message: Any) -> str:
    """Have the store's note name this message of a mailroom as the follow-up of the runs under its
    lock (``on_conflict="coalesce"``). Returns the note's key."""
    ours = message.ours
    asked = SimpleNamespace(task=task, name=ours["name"], id=message.id, ours=ours)
    ((key, text),) = task.conflict.reserves(asked).items()
    assert task.locks.store.reserve(key, text, 60.0) is None
    return str(key)


def held_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have every lock that refuses a message seem to be held for so long."""
    from django_tasklock.celery import requeue

    monkeypatch.setattr(requeue, "age", lambda _: seconds)


def waits_asked_for(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How long runs want to wait for their locks, each time; none of them does."""
    from django_tasklock.celery.run import Run

    real, waits = Run._acquire, list[float | None]()

    def acquire(run: Run, wait: float | None) -> Lease | LockInfo:
        waits.append(wait)
        return real(run, 0)

    monkeypatch.setattr(Run, "_acquire", acquire)
    return waits


# -- the stores


STORES = "django_tasklock.stores"


def of_store(path: str) -> Any:
    """What is there in the package of the stores, which need not all be installed."""
    return pkgutil.resolve_name(f"{STORES}.{path}")


def longest_silence() -> float:
    """Seconds after which a waiter that has heard nothing asks again."""
    return waiting.LONGEST_SILENCE_SECONDS


def show_everywhere(info: LockInfo) -> None:
    """In each way in which the package shows a lock; none may fail, whatever was read."""
    from django_tasklock.cli.tables import json_row, lock_cells

    json.dumps(info.as_json()).encode()
    (str(json_row(info)) + str(lock_cells(info)) + repr(info)).encode()
    assert (info.token is None) == (info.digest is not None), "it is ours, or it has a digest"
    assert info.owner.alive() in (None, True, False)


def made_of_each_process(monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], list[object]]:
    """What is declared from now on as something that each process has of its own, and what is made
    of it here."""
    declared: list[object] = []
    made: list[object] = []
    begin = processes.OfProcess.__init__

    def count(self: Any, make: Callable[[], Any], *leave: Any) -> None:
        def make_and_count() -> Any:
            made.append(make())
            return made[-1]

        declared.append(self)
        begin(self, make_and_count, *leave)

    monkeypatch.setattr(processes.OfProcess, "__init__", count)
    return declared, made


# Of Redis


def code_of_connections() -> tuple[str, ...]:
    """The code that speaks with Redis: two files of ours, and redis-py's folder."""
    ours = "django_tasklock._compat.redis", f"{STORES}.redis.connections"
    files = [str(pkgutil.resolve_name(module).__file__) for module in ours]
    return *files, str(Path(pkgutil.resolve_name("redis").__file__).parent)


def distrust_connections(monkeypatch: pytest.MonkeyPatch, *, idle: bool = False) -> None:
    """Each connection counts as one that has rested, or even as idle for long."""
    monkeypatch.setattr(f"{STORES}.redis.connections.TRUST_SECONDS", 0.0)
    if idle:
        monkeypatch.setattr(f"{STORES}.redis.connections.IDLE_SECONDS", 0.0)


def sha_of_script(name: str) -> bytes:
    """By which the server is told to run it."""
    sha: bytes = of_store("redis.connections:SCRIPTS")[name].sha
    return sha


def has_arrived(subscription: Any) -> bool:
    """Whether there is something to be read on the connection of a redis-py ``PubSub``."""
    arrives = pkgutil.resolve_name("django_tasklock._compat.redis:arrives")
    return bool(arrives(subscription.connection, 0))


def silence_seconds() -> float:
    """After which a subscription that nobody has read is not used any more."""
    return float(of_store("redis.listener:SILENCE_SECONDS"))


# Of a database


def rows_of(alias: str, timeout: float) -> Any:
    """A connection of `DatabaseStore`."""
    return of_store("database.connections:Connection")(alias, timeout)


def sweep_rows(store: Any) -> None:
    """Have a `DatabaseStore` remove what is old and over."""
    store._run(of_store("database.store:_sweep"))


def late_write(store: Any, name: str, token: str, lasts: int) -> Callable[[], bool]:
    """A statement that was held up: what it would write was read now. ``lasts``: microseconds."""
    module, late, key = of_store("database.store"), rows_of(store.database, 30.0), store.key(name)
    read, now = module._read(late, [key])
    row = module.LockRow(key, token, expires=now + lasts, began=now, fence=now)

    def write() -> bool:
        try:
            return bool(module._write(late, read, [row]))
        finally:
            late.close()

    return write


def once_rows_were_read(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do this when a `DatabaseStore` has read rows, and has not written them yet; once."""
    read = of_store("database.store:_read")

    def read_then_work(*asked: Any, **keys: Any) -> Any:
        answer = read(*asked, **keys)
        monkeypatch.undo()
        work()
        return answer

    monkeypatch.setattr(f"{STORES}.database.store._read", read_then_work)


# Of ZooKeeper


class ZooKeeperNodes:
    """How a `ZooKeeperStore` names its nodes, and how long it knows the leader's clock."""

    def __init__(self) -> None:
        nodes = of_store("zookeeper.nodes")
        self.CLOCK, self.of, self.name_of = nodes.CLOCK, nodes._quoted, nodes.name_of
        self.KNOWN_SECONDS = of_store("zookeeper.store:KNOWN_SECONDS")


def sweep_nodes(monkeypatch: pytest.MonkeyPatch, *, chance: float) -> None:
    """How often a `ZooKeeperStore` removes what is over."""
    monkeypatch.setattr(f"{STORES}.zookeeper.store.SWEEP_CHANCE", chance)


def before_zookeeper_is_asked(
    monkeypatch: pytest.MonkeyPatch, step: str, work: Callable[[Any, Any], object]
) -> None:
    """Call this with the call and its requests before each "commit" or "send" of one."""
    call = of_store("zookeeper.store:_Call")
    real = getattr(call, step)

    def worked(call: Any, requests: Any) -> Any:
        work(call, requests)
        return real(call, requests)

    monkeypatch.setattr(call, step, worked)


def zookeeper_links() -> list[Any]:
    """What this process has of connections to ZooKeeper, in stores that live."""
    link = of_store("zookeeper.store:_Link")
    # By its type: `isinstance` would ask a lazy object of Django's, such as a request's user.
    return [each for each in gc.get_objects() if type(each) is link]
