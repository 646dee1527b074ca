"""How what was written is read: of each format a function from a text to plain JSON; and the names
of keys and columns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from celery import Celery
from django.db.migrations.loader import MigrationLoader

from django_tasklock import make_name
from django_tasklock._values.tokens import read_handle
from django_tasklock.celery import LockedTask, by
from django_tasklock.celery.debounce import Burst
from django_tasklock.celery.message import Message
from django_tasklock.celery.note import RunNote
from django_tasklock.celery.one_run import FollowUp
from django_tasklock.celery.requeue import Turns
from django_tasklock.stores.event_text import event_of
from django_tasklock.stores.records import Entry, info_of, key_of, note_name, note_of, record_of
from django_tasklock.stores.redis.keys import Keys
from django_tasklock.stores.redis.waiter import value_of

AT = b"1798761600.5"
APP = "django_tasklock"


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _info(record: Any) -> Any:
    if record is None:
        return None
    info = info_of(Entry("video:7", record, 30.0), "default", "lock:video:7")
    read: dict[str, Any] = {
        "token": info.token,
        "at": info.acquired_at and info.acquired_at.isoformat(),
    }
    read |= {
        "granted": info.granted,
        "renewing": info.renewing,
        "owner": _known(info.owner.as_dict()),
    }
    return _known(read | {each: record.get(each) for each in ("version", "since")})


def lease(text: str) -> Any:
    """The record of a lease, in whatever a cache's serializer puts around it: Latin-1."""
    return _info(record_of(text.encode("latin-1")))


def waiter(text: str) -> Any:
    """A member of a wait queue on Redis."""
    return _info(record_of(value_of(text.encode("latin-1"))))


def note(text: str) -> Any:
    """A note as a store has it: its text."""
    record = note_of(text.encode())
    return None if record is None else record["text"]


def event(text: str) -> Any:
    found = event_of(text.encode(), "default", AT)
    if found is None:
        return None
    read = _known(found.as_json())
    return read | {who: _known(read[who]) for who in ("owner", "holder") if who in read}


def run(text: str) -> Any:
    """The text of the note of a message's runs."""
    return RunNote.read(text)._asdict()


def burst(text: str) -> Any:
    return Burst.read(text)._asdict()


def follow_up(text: str) -> Any:
    return FollowUp.read(text)._asdict()


def turn(text: str) -> Any:
    return Turns(*map(float, text.split()[:3]))._asdict()


def handle(text: str) -> Any:
    said = read_handle(text)._asdict()
    return said | {"limit": None if said["limit"] == math.inf else said["limit"]}


def header(text: str) -> Any:
    """The header of a message, as its run reads it."""
    message = _message(json.loads(text))
    named = message.named
    return {
        "name": named.name,
        "slots": named.slots,
        "unique": named.unique,
        "limits": [*named.limits],
        "reserved": message.reserved,
        "note": message.attempts.key,
        **{each: message.count(each) for each in ("copy", "tries", "moment")},
        "refused": message.refused_since,
        "handed": message.handle is not None,
        "token": message.ours.get("token"),
    }


READERS: dict[str, Callable[[str], Any]] = {
    each.__name__: each
    for each in (lease, waiter, note, run, event, burst, follow_up, turn, handle, header)
}


def _task(lock_name: Any) -> Any:
    app: Any = Celery("formats", set_as_current=False, fixups=[])
    app.finalize()
    how = {"lock_name": lock_name, "unique_while": "queued", "acks_late": True}

    def body(job: Any, *more: Any, preset: str = "hd") -> None: ...

    return app.task(body, base=LockedTask, shared=False, name="videos.encode", **how)


def _message(ours: Any) -> Message:
    request = SimpleNamespace(
        id="0f0d6b0e", args=[7], kwargs={}, headers={"tasklock": ours}, retries=0,
        replaced_task_nesting=0, called_directly=False, is_eager=False, delivery_info={},
    )  # fmt: skip
    return Message(_task("video:{job}"), request, [7], {})


def keys() -> dict[str, str]:
    """The keys of a store on Redis, in a cache without a prefix; and names that are made."""
    of = Keys(lambda key: f":1:{key}", "lock", "default", prepends=True)
    lock, permit = of.of("video:7"), of.of("video#2")
    found = {
        "a lock": lock.key, "its wait queue": lock.queue, "a permit": permit.key,
        "the permits' wait queue": permit.permits, "the permits' gate": permit.gate,
        "the index": of.index, "the notes that are listed": of.listed, "the fences": of.fences,
        "the history": of.history, "its rare events": of.rare, "a channel begins": of.channels,
    }  # fmt: skip
    notes = {
        "a reservation": key_of("videos.encode", "video:7"),
        "a long reservation": key_of("videos.encode", f"video:{'x' * 300}"),
        "a burst": "debounce videos.encode video:7",
        "a follow-up": "newest videos.encode video:7",
        "the turns of a lock": "turn video:7",
        "a run": _message({"sent": float(AT)}).attempts.key,
    }
    return (
        {what: key.decode() for what, key in found.items()}
        | {f"the note of {what}": note_name(key) for what, key in notes.items()}
        | names()
    )


def names() -> dict[str, str]:
    """Names that are made: another name is another lock."""
    call: Any = [["a b:c", 7, None, {"k": [1.5, True]}], {"preset": "4k"}]
    return {
        "a name of parts": make_name("cached", "default", "a b:c", "x" * 300),
        "by a template": _task("video:{job}:{preset}").naming.named(["a b:c%é"], {}).name,
        "by names of arguments": _task(by("job", "preset")).naming.named(["a b"], {}).name,
        "by all arguments": _task(None).naming.named(*call).name,
    }


def columns() -> dict[str, list[str]]:
    """By migration, the columns of the tables then. An older version does not know a later one's,
    so it leaves them out of what it inserts."""
    loader = MigrationLoader(None)
    found: dict[str, list[str]] = {}
    for app, name in sorted(loader.disk_migrations):
        if app == APP:
            models = loader.project_state((app, name)).models
            found[name] = sorted(
                f"{model.name_lower}.{field}{' may be left out' * _may_be_left_out(kind)}"
                for (of, _), model in models.items()
                if of == app and model.options.get("managed", True)
                for field, kind in model.fields.items()
            )
    return found


def _may_be_left_out(field: Any) -> bool:
    return bool(field.null or field.has_db_default())
