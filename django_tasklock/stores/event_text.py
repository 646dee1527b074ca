"""An event of the history as text, and back; what is read may be anybody's."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from .._values.arguments import LARGEST_SLOTS, LONGEST_TTL_SECONDS, base_of, is_name, is_remark
from .._values.lock_info import KINDS, Event
from .._values.owner import Owner
from .records import is_number

# Of an event's text.
MAX_EVENT_BYTES = 8192
MOST_COUNTED = 10**9

_encode = json.JSONEncoder(separators=(",", ":")).encode


def is_about(event: Event, name: str | None, task_id: str | None) -> bool:
    """Whether an event is one of the lock ``name`` or of a permit of it, and of the task
    ``task_id``; None: of any."""
    names = None, event.name, base_of(event.name, LARGEST_SLOTS)
    return name in names and task_id in (None, event.owner.task_id)


def text_of(event: Event) -> str:
    """The text of an event, without its store and its time."""
    written: dict[str, Any] = {"kind": event.kind, "name": event.name}
    written |= _present({"seconds": event.seconds, "by": event.by, "reason": event.reason})
    if event.since is not None:  # It is several.
        written["count"] = event.count
        written["within"] = round(max(0.0, (event.at - event.since).total_seconds()), 3)
    written["owner"] = _present(event.owner.as_dict())
    if event.holder is not None:
        written["holder"] = _present(event.holder.as_dict())
    return _encode(written)


def text_of_task_id(task_id: str) -> str:
    """What is in the text of every event of a task, and perhaps of others."""
    return _encode({"task_id": task_id})[1:-1]


def event_of(text: bytes, store: str, at: bytes) -> Event | None:
    """The event with this text. ``at``: seconds since the epoch, a number as text. None if anything
    is not as it was written here: anybody may have written it."""
    try:
        read = json.loads(text) if len(text) <= MAX_EVENT_BYTES else None
        if type(read) is not dict or not _is_ours(read):
            return None
        moment = datetime.fromtimestamp(float(at), timezone.utc)
        within = read.get("within")
        since = None if within is None else moment - timedelta(seconds=within)
    except (ValueError, OverflowError, OSError, RecursionError):
        return None
    owner, holder = _owner(read.get("owner")), _owner(read.get("holder"))
    if owner is None or (holder is None and read.get("holder") is not None):
        return None
    return Event(
        read["kind"], read["name"], store, moment, owner, holder, read.get("seconds"),
        read.get("by"), read.get("reason"), read.get("count", 1), since,
    )  # fmt: skip


def _is_ours(read: dict[str, Any]) -> bool:
    """Whether each field but the owners is one that could have been written here."""
    name, count = read.get("name"), read.get("count", 1)
    remarks = read.get("by", ""), read.get("reason", "")
    return (
        read.get("kind") in KINDS
        and type(name) is str
        and is_name(name)
        and type(count) is int
        and 0 < count <= MOST_COUNTED
        and all(is_number(read.get(each, 0), LONGEST_TTL_SECONDS) for each in ("seconds", "within"))
        and all(type(each) is str and is_remark(each) for each in remarks)
    )


def _owner(read: Any) -> Owner | None:
    return Owner.of_anybody(read) if type(read) is dict else None


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
