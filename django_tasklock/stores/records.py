"""What a store keeps: records under names, and the conditional writes that change them.

A lock's name has no space. A name that begins with a space is that of a note: see `note_name`.

A record is a flat dict of JSON-able values. ``token`` identifies the lease, ``version`` is new with
each rewriting of it, and absent before the first. The owner's fields say who holds the lock. A
note's record has its ``text``, and a digest of that as its token.

Anybody may have written what a store reads. A value is a record of ours if each of its fields is
one that we could have written. Every other value is somebody else's key, which is a lock too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha1, sha256
from math import inf
from typing import Any, NamedTuple

from .._values.arguments import LONGEST_NAME_CHARACTERS, LONGEST_TTL_SECONDS, is_token
from .._values.lock_info import LockInfo, shown
from .._values.owner import LIMITS, SINCE, Owner
from .._values.tokens import TOKEN_CHARACTERS, token_of

Record = Mapping[str, Any]

# What must be under a name: nothing; whatever is there.
FREE, ANY = "free", "any"
# In the place of a record: what is there stays, and gets the change's ttl if there is one.
KEEP = "keep"

# Seconds since the epoch: the end of the year 9999, the last that a `datetime` can have.
MAX_TIMESTAMP_SECONDS = 253402300799.0
# Bytes that a record of ours has at most; a longer value is not looked into.
LONGEST_RECORD_BYTES = 16384
# A field that no record has yet. Of one with it, only a later version knows whose it is.
FORMAT = "format"
# What the keys of reservations begin with, and their names: a store lists these notes.
LISTED_KEY_PREFIX = "queued "
LISTED = f" {LISTED_KEY_PREFIX}"
# Characters of a note's name; a longer one is replaced by a digest.
LONGEST_NOTE_NAME = LONGEST_NAME_CHARACTERS + 20

_begins = re.compile(r'\{(\\?)"token\1"').search
# The record as ASCII text: JSON, with token and version as they are. A record is flat: it contains
# nothing that could contain itself.
text_of_record = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Note(NamedTuple):
    """A text that a store keeps under a key for some time, to recognise redeliveries.

    Attributes:
        key: any text; it never meets a lock's name.
        text: an empty text means that there is no note: the store removes the one that is there.
        ttl: seconds for which the note is kept.
    """

    key: str
    text: str
    ttl: float


class Held(NamedTuple):
    """Expect this lease; with a version, this very record of it."""

    token: str
    version: str | None = None


class Foreign(NamedTuple):
    """Expect this value of other code, by the `digest_of` it."""

    digest: str


class Change(NamedTuple):
    """One conditional write.

    It counts as made if its record is there already, which then gets the change's ttl: a call whose
    reply was lost may be repeated. A record that replaces another one keeps the lease's fence.

    Attributes:
        name: of the lock or the note.
        expect: `FREE`, `ANY`, or what must be there.
        record: what is there afterwards. None: nothing. `KEEP`: what is there stays.
        ttl: seconds from now until what is there ends by itself.
    """

    name: str
    expect: str | Held | Foreign
    record: Record | str | None
    ttl: float | None = None


class Entry(NamedTuple):
    """What is under a name now.

    Attributes:
        name: of the lock or the note.
        record: None: other code's value.
        left: seconds until it ends. None: it never does.
        fence: of a lease. None: it has none, or there is other code's value.
        digest: of other code's value.
        began: when the lease began, by the store's own clock, in seconds since the epoch. None:
            when the record says, or there is other code's value.
        waiters: the length of the lock's wait queue. None: not counted.
        waiting_since: when the next waiter first asked, in seconds since the epoch. None: nobody
            waits, or that is not known.
    """

    name: str
    record: Record | None
    left: float | None
    fence: int | None = None
    digest: str | None = None
    began: float | None = None
    waiters: int | None = None
    waiting_since: float | None = None

    @property
    def token(self) -> str | None:
        """Of the lease that is there; None: it is other code's value."""
        return None if self.record is None else self.record["token"]

    @property
    def text(self) -> str | None:
        """Of the note that is there; None: it is none of ours."""
        return None if self.record is None else self.record.get("text")

    @property
    def itself(self) -> Held | Foreign:
        """What a change expects that is made to nothing else."""
        return Held(self.record["token"]) if self.record else Foreign(self.digest or "")


class Done(NamedTuple):
    """The answer to changes.

    Attributes:
        made: whether all of them were made; otherwise none was.
        entries: what is under the name of each change now, in their order. None: nothing.
    """

    made: bool
    entries: Sequence[Entry | None]


def is_there(change: Change, there: Entry | None) -> bool:
    """Whether the record of a change is under its name already."""
    new = change.record
    if not isinstance(new, Mapping) or there is None or there.record is None:
        return False
    old = there.record
    return (new["token"], new.get("version")) == (old["token"], old.get("version"))


def fits(change: Change, there: Entry | None) -> bool:
    """Whether a change can be made, or counts as made, where there is this under its name."""
    expect = change.expect
    if there is None:
        return expect in (FREE, ANY)
    if expect == ANY or is_there(change, there):
        return True
    if isinstance(expect, Held) and there.record is not None:
        return there.record["token"] == expect.token and (
            expect.version in (None, there.record.get("version"))
        )
    return isinstance(expect, Foreign) and there.digest == expect.digest


def after(change: Change, there: Entry | None, fence: int | None, least: int = 0) -> Entry | None:
    """Return what is under a change's name when the change, which `fits`, is made; None: nothing.

    Args:
        change: that is made.
        there: what is under its name before.
        fence: of the lease, if it is a new one; None: the store has no fences.
        least: the fence of a lease that is written, or found to be there already, is made this
            number if it is smaller.

    ``left`` is the change's ttl. The caller notes when a new lease ``began``.
    """
    name, expect, record, ttl = change
    if record is None:
        return None
    if not isinstance(record, Mapping):  # `KEEP`
        if there is None or there.record is None or ttl is None:
            return there
        return there._replace(left=ttl)
    if there is None or not (isinstance(expect, Held) or is_there(change, there)):
        there = Entry(name, record, ttl, fence)
    if there.fence is not None:
        there = there._replace(fence=max(there.fence, least))
    return there._replace(record=record, left=ttl)


def undoing(changes: Iterable[Change]) -> list[Change]:
    """Return the changes that remove the new records which these have made."""
    return [
        Change(name, Held(record["token"], record.get("version")), None)
        for name, expect, record, _ in changes
        if expect == FREE and isinstance(record, Mapping)
    ]


def new_record(token: str, owner: Mapping[str, Any], version: str = "") -> dict[str, Any]:
    """Return the record of a lease: the token, which comes first, the owner's fields, the time."""
    record = {"token": token, **owner, "at": time.time()}
    if version:
        record["version"] = version
    return record


def record_of(value: bytes | str) -> Record | None:
    """Return the record in a value; None if it is not as we write it.

    The value is the text of a record, or has it inside: a cache's serializer may have put something
    around it, or quoted it as JSON once more. Nothing else of the value is interpreted.
    """
    if len(value) > LONGEST_RECORD_BYTES:
        return None
    try:
        text = value if isinstance(value, str) else value.decode("utf-8", "replace")
        # By the first field: a serializer may have put any other character before the text.
        begins = _begins(text)
        if begins is None:
            return None
        text = text[begins.start() : text.rindex("}") + 1]
        read = json.loads(json.loads(f'"{text}"') if begins[1] else text)
    except (ValueError, RecursionError):
        return None
    if type(read) is dict and FORMAT in read:
        read = {key: read[key] for key in read if key not in LIMITS}
    return read if type(read) is dict and _is_ours(read) else None


def plain_note(text: str) -> bytes:
    """Return a note's text as a store may write it in less space: its token, and the text."""
    return f"{token_of(text)}{text}".encode("utf-8", "surrogatepass")


def note_of(value: bytes) -> Record | None:
    """Return the record in a note's value, which is that of a `plain_note`, or as `record_of`."""
    if len(value) <= LONGEST_RECORD_BYTES:
        with suppress(UnicodeDecodeError):
            plain = value.decode("utf-8", "surrogatepass")
            record = note_record(plain[TOKEN_CHARACTERS:])
            if record["token"] == plain[:TOKEN_CHARACTERS]:
                return record
    return record_of(value)


def _is_ours(read: dict[str, Any]) -> bool:
    get = read.get
    token, texts = get("token"), (get("version", ""), get("text", ""), get("key", ""))
    moments = get("at"), get("ends"), get(SINCE)  # A CacheStore has written the second.
    ttl, renew = get("ttl"), get("renew")
    return (
        type(token) is str
        and is_token(token) is not None
        and all(type(each) is str for each in texts)
        and ("text" not in read or token == token_of(texts[1]))
        and all(each is None or is_number(each, MAX_TIMESTAMP_SECONDS) for each in moments)
        and (ttl is None or (is_number(ttl, LONGEST_TTL_SECONDS) and ttl > 0))
        and (renew is None or renew is True or renew is False)
        and Owner.of_anybody(read) is not None
    )


def is_number(value: Any, most: float) -> bool:
    """Whether a value is a number from 0 to ``most``."""
    return type(value) in (int, float) and 0 <= value <= most


def digest_of(value: bytes) -> str:
    """Return a digest that identifies a value which other code set."""
    return sha1(value, usedforsecurity=False).hexdigest()


def info_of(entry: Entry, store: str, key: str) -> LockInfo:
    """Return what there is to know of a lock. ``store``: the alias. ``key``: the physical key."""
    name, record, left, fence, digest, began, waiters, since = entry
    read = {} if record is None else record
    at = read.get("at") if began is None else began
    return LockInfo(
        shown(name), left, _moment(at), entry.token, Owner.from_record(read), store, key, fence,
        waiters, read.get("ttl"), read.get("renew"), digest, _moment(since),
    )  # fmt: skip


def waiter_of(record: Record) -> Owner:
    """Return the owner in a waiter's record, with the moment at which it first asked."""
    since = _moment(record.get(SINCE, record.get("at")))
    return replace(Owner.from_record(record), waiting_since=since)


def left_of(entry: Entry) -> float:
    """Return the seconds until an entry ends; infinity if it never does."""
    return inf if entry.left is None else entry.left


def is_note(name: str) -> bool:
    """Whether the name is that of a note, and not of a lock."""
    return name.startswith(" ")


def is_listed(name: str, prefix: str) -> bool:
    """Whether `Contract.list` yields what is under a name."""
    return name.startswith(prefix) and is_note(name) == is_note(prefix)


def key_of(task: str, name: str) -> str:
    """Return the key under which a job is reserved for the message that waits: a job is a task, and
    the name of its lock."""
    return f"{LISTED_KEY_PREFIX}{task} {name}"


def note_name(key: str) -> str:
    """Return the name under which a store keeps the note with this key, any text.

    It begins with a space, and has at most `LONGEST_NOTE_NAME` printable characters. That of a
    reservation begins with `LISTED`. The name of such a name is that name.
    """
    if is_note(key):
        return key
    name = f" {key}"
    if len(name) <= LONGEST_NOTE_NAME and name.isprintable():
        return name
    digest = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{LISTED if name.startswith(LISTED) else ' '}{digest}"


def note_record(text: str, key: str = "") -> Record:
    """Return the record of a note. It is the same for the same arguments.

    ``key``: the note's, where it cannot be read from its name.
    """
    record = {"token": token_of(text), "text": text}
    return record if is_note(key) or note_name(key) == f" {key}" else {**record, "key": key}


def noting(note: Note, expect: str | Held | Foreign) -> Change:
    """Return the change that writes a note, or removes it."""
    if not note.text:
        return Change(note_name(note.key), expect, None)
    return Change(note_name(note.key), expect, note_record(note.text, note.key), note.ttl)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=timezone.utc)
