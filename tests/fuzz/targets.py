"""What is fuzzed: functions that take any bytes, and raise where a promise is broken."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import datetime, timezone
from unittest.mock import patch

from django.core.exceptions import BadRequest
from django.core.management import CommandError, call_command

from django_tasklock import LockInfo, locks
from django_tasklock._values.arguments import checked_name
from django_tasklock.admin.seen import SeenLease, encode_many
from django_tasklock.celery.debounce import Burst
from django_tasklock.celery.runnote import RunNote
from django_tasklock.cli.tables import as_sheet, cells_of
from django_tasklock.management.commands.locks import Command
from django_tasklock.operators.kept_search import _read as read_kept_search
from django_tasklock.stores.redis import handover
from django_tasklock.stores.redis.keyspace import Keyspace
from django_tasklock.stores.redis.notes import decoded_keys
from django_tasklock.stores.trail import event_of, text_of
from tests.fuzz.stores import SERIALIZERS, redis_store

__all__ = ["TARGETS", "Target", "words_of"]

Target = Callable[[bytes], None]

SPACE = b"\x1f"
"""between two words of a command line; a space may be part of a word"""
NOT_RUN = frozenset({"run", "lead", "hold"})
"""verbs that start a command or wait: their arguments are read, and no more"""
QUESTION = b"token:1"
KEYSPACES = [Keyspace(str, "lock", prepends=prepends) for prepends in (True, False)]


def record(data: bytes) -> None:
    """The value of a lock's key is shown, whatever it is, and nothing of it is run."""
    for serializer in SERIALIZERS:
        reader = redis_store(serializer).records
        assert repr(reader.record(data)) == repr(reader.strictly(data)), "read quickly"
        _shown(reader.info("video:1", data, 60.0, b"1", 1, data))
        _shown(reader.info("video:1", data, None))


def _shown(info: LockInfo) -> None:
    json.dumps(info.as_json()).encode()
    (as_sheet(info) + "".join(cells_of(info)) + repr(info)).encode()
    assert (info.token is None) == (info.digest is not None), "it is ours, or it has a digest"
    assert info.owner.alive() in (None, True, False)


def message(data: bytes) -> None:
    """A message to a waiter is for its question, or it is nothing."""
    for text in (data, QUESTION + b":" + data):
        news = handover.read(text, QUESTION)
        assert news is None or text.startswith(QUESTION), "a message for another question"


def event(data: bytes) -> None:
    """An entry of the history is an event that can be written again, or nothing."""
    at = datetime.now(timezone.utc)
    found = event_of(data, "default", at)
    if found is not None:
        json.dumps(found.as_json()).encode()
        again = event_of(text_of(found).encode(), "default", at)
        assert again is not None, "an event that was read cannot be written"
        assert (again.kind, again.name) == (found.kind, found.name)


def notes(data: bytes) -> None:
    """The notes of tasks and searches count as none where they are not as they are written."""
    text = data.decode("utf-8", "surrogateescape")
    note = RunNote.read(text)
    assert note.starts >= 0
    json.dumps(note.starts + 1)
    burst = Burst.read(text)
    if burst is not None:
        assert Burst.read(burst.text()) == burst
        # What `send_debounced` counts with.
        float((burst.first - time.time_ns()) / 1e9)
        json.dumps(burst.last + 1000)
    kept = read_kept_search(text)
    if kept is not None:
        assert all(checked_name(name) for name in kept.names)
    for keyspace in KEYSPACES:
        for key in decoded_keys(keyspace, [data]):
            keyspace.note_member(key).encode()
        name = keyspace.name_of(data)
        assert name is None or keyspace.member(name).encode() == data


def box(data: bytes) -> None:
    """A form's field names leases as a page has shown them, or is refused."""
    text = data.decode("utf-8", "replace")
    with suppress(BadRequest):
        assert SeenLease.decode(SeenLease.decode(text).encode()) == SeenLease.decode(text)
    with suppress(BadRequest):
        leases = SeenLease.decode_many(text)
        assert SeenLease.decode_many(encode_many(leases)) == leases


def words_of(data: bytes) -> list[str]:
    """The words of a command line. Python has bytes that are no UTF-8 as surrogates in sys.argv."""
    return [word.decode("utf-8", "surrogateescape") for word in data.split(SPACE)]


def command(data: bytes) -> None:
    """``manage.py locks`` does what it is told or says one error, and prints no controls."""
    words = words_of(data)
    ended: CommandError | SystemExit | None = None
    parser = Command().create_parser("manage.py", "locks")
    with _quiet() as out:
        try:
            options = vars(parser.parse_args(words))
            if words[0] in NOT_RUN or options.get("watch") or options.get("follow"):
                return
            locks.acquire("video:1", ttl=600)
            call_command("locks", *words, stdout=out, stderr=io.StringIO())
        except (CommandError, SystemExit) as end:
            ended = end
    if isinstance(ended, CommandError):
        assert str(ended).strip(), "an error without words"
    elif isinstance(ended, SystemExit):
        assert type(ended.code) is int, "an end without a status"
    said = out.getvalue()
    raw = {letter for letter in said if ord(letter) < 32} - {"\n"}
    assert not raw, f"control characters: {raw}"


@contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Nobody answers questions, and what argparse prints by itself is not shown."""
    with (
        patch.object(sys, "stdin", io.StringIO()),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        yield io.StringIO()


TARGETS: Mapping[str, Target] = {
    target.__name__: target for target in (record, message, event, notes, box, command)
}
