"""Inputs to begin with: what each target reads when nothing is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from django_redis.serializers.json import JSONSerializer
from django_redis.serializers.pickle import PickleSerializer

from django_tasklock._values.event import Event
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock.admin.seen import SeenLease, encode_many
from django_tasklock.celery.debounce import Burst
from django_tasklock.celery.runnote import RunNote
from django_tasklock.stores.record import new_record
from django_tasklock.stores.trail import text_of
from tests.fuzz.targets import SPACE

__all__ = ["DICTIONARY", "SEEDS"]

TOKEN = "0123456789abcdefghijkl"
FENCE = "1700000000000000"
COMMANDS = (
    "list", "list --format json", "list --sort -age", "list --search video", "list --limit 5",
    "show video:1", "show video:1 --format json", "clear video:1 --noinput",
    "clear --all --noinput",
    "clear --prefix video: --dry-run", "doctor --format json", "doctor --requeue", "history",
    "history video:1 --limit 3", "history --top", "explain video:1", "metrics", "hold video:1",
    "run video:1 -- true", "lead report -- true", "list --store nowhere", "--help", "list -h",
)  # fmt: skip


def _records() -> list[bytes]:
    record = {**new_record(TOKEN, owner_record(), 1.0), "ttl": 60.0, "renew": True, "ends": 2.0}
    return [serializer({}).dumps(record) for serializer in (PickleSerializer, JSONSerializer)]


def _events() -> list[bytes]:
    at, owner = datetime.now(timezone.utc), Owner(host="web-1", pid=7, task="transcode")
    plain = Event("refused", "video:1", "default", at, owner)
    full = Event("cleared", "video:1", "default", at, owner, owner, 1.5, "ada", "why", 3, at)
    return [text_of(event).encode() for event in (plain, full)]


SEEDS: Mapping[str, Sequence[bytes]] = {
    "record": _records(),
    "message": [
        f"{FENCE}:{FENCE}".encode(),
        f"={FENCE}:{FENCE}:60000:value".encode(),
    ],
    "event": _events(),
    "notes": [
        RunNote.started(2).encode(),
        RunNote.ended(2).encode(),
        Burst(1, "task", 1, 1).text().encode(),
        json.dumps([time.time(), True, "video:1 video:2"]).encode(),
        # Numbers with which nothing can be counted.
        Burst(1, "task", 10**400).text().encode(),
        Burst(-(10**30), "task", 1, 10**30).text().encode(),
        json.dumps({"starts": 10**400}).encode(),
    ],
    "box": [
        SeenLease("default", TOKEN, "video:1", None).encode().encode(),
        encode_many([SeenLease("default", None, "video:1", "0" * 32)]).encode(),
    ],
    "command": [SPACE.join(line.encode().split(b" ")) for line in COMMANDS],
}

DICTIONARY: Mapping[str, Sequence[bytes]] = {
    "command": sorted(
        {word for line in SEEDS["command"] for word in line.split(SPACE)}
        | {b"--sort", b"--task", b"--host", b"--by", b"--reason", b"--ttl", b"--", SPACE}
    ),
    "notes": [b'"starts"', b'"pid"', b"NaN", b"1e999", b"9" * 30, b"null", b"true"],
    "event": [b'"kind"', b'"name"', b'"count"', b'"within"', b'"seconds"', b"NaN", b"Infinity"],
    "record": [b'"token"', b'"at"', b"\x8c\x05token", b"\x80\x04", b"NaN"],
}
"""parts of inputs that are not found by chance"""
