"""What this version writes: of each format fixed examples, of a fixed process at a fixed moment."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from celery.exceptions import Retry

from django_tasklock._values import owner as owners
from django_tasklock._values.lock_info import Event, LockKeys
from django_tasklock._values.owner import Owner, operator_record, owner_record
from django_tasklock._values.tokens import Handle
from django_tasklock.celery.debounce import Burst
from django_tasklock.celery.note import Attempts
from django_tasklock.celery.one_run import FollowUp
from django_tasklock.stores.event_text import text_of
from django_tasklock.stores.records import (
    key_of,
    new_record,
    note_record,
    plain_note,
    text_of_record,
)
from django_tasklock.stores.redis.keys import Encoding
from django_tasklock.stores.zookeeper.nodes import CHILD, LASTS

TOKEN, OTHER = "abcdefghijklmnopqrstuv", "ABCDEFGHIJKLMNOPQRSTUV"
MOMENT = 1798761600.5
NANOSECONDS = 1798761600500000000
TASK_ID = "0f0d6b0e-6b3e-4a67-9a4c-2f7d8d1f4f55"
PROCESS = {
    "host": "worker-1",
    "pid": 4711,
    "boot": "0f6d9a52-5d3e-4c8b-9a55-3c1f0e7b2a11",
    "pidns": "4026531836",
    "timens": "4026531834",
    "start": 123456,
}


@contextmanager
def fixed_process() -> Iterator[None]:
    """This process is `PROCESS`, in a thread that is called "MainThread-1", at `MOMENT`."""
    with (
        patch.object(owners, "this_process", lambda: PROCESS),
        patch.object(owners, "strand_name", lambda: "MainThread-1"),
        patch.object(owners, "_pid_space", "5f0c2a7e"),
        patch("time.time", lambda: MOMENT),
    ):
        yield


def examples() -> dict[str, dict[str, str]]:
    """What is written, by format and by what it is."""
    with fixed_process():
        runs = _runs()
        notes = {f"on Redis: {what}": plain_note(text).decode() for what, text in runs.items()}
        return {
            "lease": _leases(),
            "waiter": _waiters(),
            "note": {
                **notes,
                "on Redis: reservation": plain_note(TASK_ID).decode(),
                "elsewhere": text_of_record(note_record("w")),
            },
            "run": runs,
            "event": {what: text_of(event) for what, event in _events().items()},
            "burst": {"open": json.dumps(Burst(NANOSECONDS + 5, NANOSECONDS, TASK_ID, 0))},
            "follow_up": {"named": json.dumps(FollowUp(MOMENT, TASK_ID))},
            "turn": {"given": f"{MOMENT!r} {MOMENT - 3!r} {2.5!r} {TASK_ID}"},
            "handle": {what: str(handle) for what, handle in _handles().items()},
            "header": {what: json.dumps(ours) for what, ours in _headers().items()},
        }


def _leases() -> dict[str, str]:
    more = {"ttl": 60.0, "renew": True}
    run = {**owner_record("videos.encode", TASK_ID), **more}
    command = {**owner_record("report.sh", group=4712), **more}
    hold = {**operator_record("alice", "migration"), "ttl": 7200.0}
    record = new_record(TOKEN, run)
    records = {
        "a run": record,
        "a block, rewritten once": new_record(TOKEN, {**owner_record(), **more}, OTHER),
        "a permit": new_record(TOKEN, {**run, "slots": 3}),
        "a lock inside a task": new_record(TOKEN, {**run, "inside": True}),
        "a command and its group": new_record(TOKEN, command),
        "cooling": new_record(TOKEN, {**run, "mark": "cooling"}, OTHER),
        "detached": new_record(TOKEN, {**run, "mark": f"detached:{OTHER}"}, OTHER),
        "a hold": new_record(TOKEN, hold),
        "on ZooKeeper": {**record, LASTS: 60.0, CHILD: OTHER},
        "in a cache without Redis": {**record, "ends": MOMENT + 60},
    }
    texts = {what: text_of_record(each) for what, each in records.items()}
    return texts | {
        "in a pickle": pickle.dumps(texts["a run"], 5).decode("latin-1"),
        "in JSON": json.dumps(texts["a run"]),
    }


def _waiters() -> dict[str, str]:
    waits = {**owner_record("videos.encode", TASK_ID), "ttl": 60.0, "renew": True, "since": 8.25}
    value = Encoding(json.dumps).value_of_lease(TOKEN, waits).decode()
    return {
        "for a lock": f"{TOKEN}{OTHER}0:60000:{value}",
        "for one of three permits": f"{TOKEN}{OTHER}3:60000:{value}",
    }


def _runs() -> dict[str, str]:
    request = SimpleNamespace(id=TASK_ID, retries=0, replaced_task_nesting=0)
    locks: Any = SimpleNamespace(store=SimpleNamespace(keyed_note=str))
    attempts = Attempts(locks, request, {"token": TOKEN, "sent": MOMENT}, counts=True, again=False)
    attempts.counted = 1
    notes = {
        "started": attempts.note_of_start(),
        "ended": attempts.note_of_end(None, keeps_results=False),
        "went on": attempts.note_of_end(Retry(), keeps_results=False),
    }
    return {what: note.text for what, note in notes.items() if note is not None}


def _events() -> dict[str, Event]:
    at = datetime.fromtimestamp(MOMENT, timezone.utc)
    since = datetime.fromtimestamp(MOMENT - 0.75, timezone.utc)
    me = Owner(host="web-1", pid=12, thread="t")
    task = Owner(host="worker-1", pid=4711, task="videos.encode", task_id=TASK_ID)
    operator = Owner(held_by="alice", reason="migration")
    event: Any = partial(Event, name="video:7", store="default", at=at, owner=task)
    return {
        "three refusals": event(
            "refused", owner=me, holder=task, seconds=1.5, count=3, since=since
        ),
        "skipped": event("skipped", holder=me, seconds=0.0, reason="already_processing"),
        "waited": event("waited", owner=me, seconds=2.5),
        "lost": event("lost", reason="expired"),
        "cleared": event("cleared", by="alice"),
        "taken over": event("taken over", name="video#2", by="worker-1:99"),
        "given up": event("given up", reason="held"),
        "adopted": event("adopted"),
        "held": event("held", owner=operator, seconds=7200.0, by="alice", reason="migration"),
    }


def _handles() -> dict[str, Handle]:
    mark = f"detached:{OTHER}"
    tenants = LockKeys("video:7", "default", b":1:acme:video:7", of_all=False)
    return {
        "of a lock": Handle("default", "video:7", TOKEN, 1798761600500000, mark, 60.0),
        "of a permit with max_hold": Handle("default", "video#2", TOKEN, 5, mark, 60.0, 3, MOMENT),
        "of a tenant": Handle("default", tenants, TOKEN, None, mark, 60.0),
    }


def _headers() -> dict[str, Any]:
    sent = {"sent": MOMENT, "name": "video:7", "slots": 1}
    return {
        "as it was sent": sent,
        "with a reservation": {**sent, "reserved": key_of("videos.encode", "video:7")},
        "requeued": {**sent, "tries": 3, "copy": 1, "refused": [MOMENT - 9, 0], "token": TOKEN},
        "debounced": {**sent, "moment": NANOSECONDS},
        "with a lease": {**sent, "lease": str(_handles()["of a lock"])},
    }
