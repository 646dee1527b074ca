"""An event of the history as text, and back; what is read may be anybody's."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from .._values.arguments import LONGEST_TTL_SECONDS, is_name, is_remark
from .._values.event import KINDS, Event
from .._values.owner import Owner
from .._values.slots import LARGEST_SLOTS, base_of

# Of an event's text.
MAX_EVENT_BYTES = 8192
MOST_COUNTED = 10**9
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_NUMBERS = frozenset({int, float})
_encode = json.JSONEncoder(separators=(",", ":")).encode


def is_about(event: Event, name: str | None, task_id: str | None) -> bool:
    """Whether an event is one of the lock ``name`` or of a permit of it, and of the task
    ``task_id``; None: of any."""
    names = None, event.name, base_of(event.name, LARGEST_SLOTS)
    return name in names and task_id in (None, event.owner.task_id)


def text_of(event: Event) -> str:
    """The text of an event, without its store and its time."""
    written: dict[str, Any] = {"kind": event.kind, "name": event.name}
    for field in ("seconds", "by", "reason"):
        if (value := getattr(event, field)) is not None:
            written[field] = value
    if event.count > 1:
        written["count"] = event.count
        if event.since is not None:
            written["within"] = round(max(0.0, (event.at - event.since).total_seconds()), 3)
    for who in ("owner", "holder"):
        if (owner := getattr(event, who)) is not None:
            values = owner.as_dict().items()
            written[who] = {name: value for name, value in values if value is not None}
    return _encode(written)


def text_of_task_id(task_id: str) -> str:
    """What is in the text of every event of a task, and perhaps of others."""
    return _encode({"task_id": task_id})[1:-1]


def event_of(text: bytes, store: str, at: bytes) -> Event | None:
    """The event with this text. ``at``: seconds since the epoch, a number as text. None if anything
    is not as it was written here: anybody may have written it."""
    try:
        read = json.loads(text) if len(text) <= MAX_EVENT_BYTES else None
        moment = EPOCH + timedelta(seconds=float(at))
    except (ValueError, OverflowError, RecursionError):
        return None
    if type(read) is not dict:
        return None
    get = read.get
    kind, name, seconds, by, reason = map(get, ("kind", "name", "seconds", "by", "reason"))
    owner, holder = _owner(get("owner")), _owner(get("holder"))
    count, within = get("count", 1), get("within")
    if (
        kind in KINDS
        and type(name) is str
        and is_name(name)
        and owner is not None
        and (holder is not None or get("holder") is None)
        and all(each is None or _is_duration(each) for each in (seconds, within))
        and type(count) is int
        and 0 < count <= MOST_COUNTED
        and all(each is None or (type(each) is str and is_remark(each)) for each in (by, reason))
    ):
        try:
            since = None if within is None else moment - timedelta(seconds=within)
        except OverflowError:  # Before the year 1.
            return None
        return Event(kind, name, store, moment, owner, holder, seconds, by, reason, count, since)
    return None


def _is_duration(value: Any) -> bool:
    return type(value) in _NUMBERS and 0 <= value <= LONGEST_TTL_SECONDS


def _owner(read: Any) -> Owner | None:
    return Owner.of_anybody(read) if type(read) is dict else None
