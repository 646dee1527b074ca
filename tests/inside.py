"""What tests do with the inside of the package; whoever changes that changes this file alone."""

from __future__ import annotations

import gc
import json
import pkgutil
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest

from django_tasklock import Lease, LockInfo
from django_tasklock._engine import history, jobs, waiting
from django_tasklock._engine import keeper as keeper_module
from django_tasklock._engine.acquiring import Acquiring, How
from django_tasklock._engine.keeper import keeper_of
from django_tasklock._engine.lease import Use
from django_tasklock._engine.own_token import OwnToken
from django_tasklock._engine.waiting import blocking
from django_tasklock._values import clock, processes
from django_tasklock._values import owner as owner_module
from django_tasklock._values.event import Kind
from django_tasklock._values.handle import read_handle
from django_tasklock._values.owner import COOLING, MARK, Owner, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note

__all__ = [
    "COOLING", "MARK", "Owner", "as_before_a_checkpoint", "ask_again_after", "asked", "clock",
    "forget_all", "fork_untold", "give_up", "given_up", "is_renewed", "keep_events_for", "kept",
    "look_often", "looks_before", "new_token", "note", "owner_record", "poll_after",
    "queue_events_in", "read_handle", "unreserve_later", "write_events",
]  # fmt: skip


def asked(
    name: str, *, task: str | None = None, task_id: str | None = None, token: str | None = None,
    note: Note | None = None, **options: Any,
) -> Lease | LockInfo:  # fmt: skip
    """What becomes of a task's question for its lock."""
    use = Use()
    acquiring = Acquiring(
        How(**options), name, use, use.record(task, task_id), token=token, note=note
    )
    won = blocking(acquiring.steps())
    return won.alone() if isinstance(won, Lease) else won


def kept(alias: str = "default") -> int:
    """How many tokens and notes the thread of a store looks after."""
    keeper = keeper_of(stores[alias])
    return len(keeper.table) + len(keeper.jobs)


def give_up(lease: Lease, note: Note | None = None) -> None:
    """Leave a lease to that thread, as a call does that was interrupted."""
    lease._own.note = note
    lease.give_up()


def unreserve_later(key: str, text: str) -> None:
    """Leave a note to that thread, as a call does that got no answer."""
    keeper_of(stores["default"]).unreserve_later(key, text, 600.0)


def ask_again_after(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Have waiters ask again so long after their question."""
    monkeypatch.setattr(waiting, "LONGEST_SILENCE_SECONDS", seconds)


def look_often(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have stores' threads look so often for what nobody refers to any more."""
    monkeypatch.setattr(jobs, "LOOK_SECONDS", seconds)


def as_before_a_checkpoint(monkeypatch: pytest.MonkeyPatch, fields: Mapping[str, Any]) -> None:
    """Have this process know of itself what it was before it was restored, and not read it yet."""
    known = {**owner_module.this_process(), **fields}
    monkeypatch.setattr(owner_module, "_this_process", known)


def poll_after(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Have waiters poll so seldom."""
    monkeypatch.setattr(waiting, "FIRST_POLL_SECONDS", seconds)
    monkeypatch.setattr(waiting, "MAX_POLL_SECONDS", seconds)


def forget_all() -> None:
    """Have all stores' threads forget what they look after."""
    for each in jobs.all_jobs():
        for kept in (each.tokens, each.new, each.planned, each.notes):
            kept.clear()
        history.history_of(each.store).events.clear()


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


def queue_events_in(queue: deque[Any]) -> None:
    """Have the events wait there until they are written."""
    history.history_of(stores["default"]).events = queue


def note(kind: Kind, name: str, owner: Mapping[str, Any] | Owner) -> None:
    """Have an event written."""
    history.note_event(stores["default"], kind, name, owner)


def write_events() -> None:
    """Write the events at once."""
    history.write_events(stores["default"])


def keep_events_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have events come together for so long before they are written."""
    monkeypatch.setattr(history, "BATCH_SECONDS", seconds)


def fork_untold(fork: Callable[[], int]) -> int:
    """Fork, and have the package's handler of `os.register_at_fork` find nothing to do."""
    known, processes._all = processes._all, WeakValueDictionary()
    try:
        return fork()
    finally:
        processes._all = known


# -- the stores

from django_tasklock._values.arguments import LONGEST_TTL_SECONDS as LONGEST_TTL_SECONDS  # noqa: E402
from django_tasklock._values.event import KINDS as KINDS  # noqa: E402
from django_tasklock._values.event import Event as Event  # noqa: E402
from django_tasklock._values.owner import operator_record as operator_record  # noqa: E402
from django_tasklock._values.slots import permit_names as permit_names  # noqa: E402

STORES = "django_tasklock.stores"


def of_store(path: str) -> Any:
    """What is there in the package of the stores, which need not all be installed."""
    return pkgutil.resolve_name(f"{STORES}.{path}")


def longest_silence() -> float:
    """Seconds after which a waiter that has heard nothing asks again."""
    return waiting.LONGEST_SILENCE_SECONDS


def key_of_reservation(task: str, name: str) -> str:
    """Under which a store keeps the reservation of a job in the queue."""
    from django_tasklock.operators.reservations import key_of

    return key_of(task, name)


def diagnosed() -> list[Any]:
    """What the doctor finds."""
    from django_tasklock.operators.doctor import diagnose

    return list(diagnose())


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
    return float(of_store("redis.subscription:SILENCE_SECONDS"))


def listen_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have `silence_seconds` be so many."""
    monkeypatch.setattr(f"{STORES}.redis.subscription.SILENCE_SECONDS", seconds)


def interrupt_ends_of_subscriptions(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Any], object]
) -> None:
    monkeypatch.setattr(f"{STORES}.redis.subscription.Subscription.end", work)


def list_in_little_scripts(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A script reads at most so many leases, or names."""
    for each in ("FIRST_LEASES", "LEASES_PER_SCRIPT", "NAMES_PER_SCRIPT"):
        monkeypatch.setattr(f"{STORES}.redis.store.{each}", most)


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


def no_thread_for_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system starts none for a `ZooKeeperStore`."""
    monkeypatch.setattr(f"{STORES}.zookeeper.store._start", lambda work: False)


def zookeeper_links() -> list[Any]:
    """What this process has of connections to ZooKeeper, in stores that live."""
    link = of_store("zookeeper.store:_Link")
    # By its type: `isinstance` would ask a lazy object of Django's, such as a request's user.
    return [each for each in gc.get_objects() if type(each) is link]
