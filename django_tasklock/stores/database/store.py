"""Locks in a table: the rows are read, and written if they are still as they were read."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, IntegrityError, connections
from django.db.backends.signals import connection_created

from ..._compat.django import is_above_databases
from ..._values.interruptions import interrupts
from ..._values.tokens import chance
from ...conf import StoreSettings
from ...exceptions import StoreUnavailable
from .. import records
from ..base import BaseStore
from ..contract import ATTEMPTS
from ..records import FREE, Change, Done, Entry, Held
from .connections import Connection, DatabaseConnections

T = TypeVar("T")

# The table of the model `LeaseRow`, and its columns in the order of `LockRow`.
TABLE = "django_tasklock_lease"
COLUMNS = "name, token, version, record, expires, began, fence"

MICROSECONDS = 1_000_000
# When a record ends that has no ttl.
NEVER = 2**62

LONGEST_KEY_CHARACTERS = 255
DEFAULT_TIMEOUT_SECONDS = 5.0
ROWS_AT_ONCE = 500
# A row that nothing has used for so long is deleted. The next lease of its lock then gets the time
# as its fence, which is greater unless the database's clock was set back by more than that.
RETENTION_MICROSECONDS = 86_400 * MICROSECONDS
# How many of the calls that look for a free lock delete such rows first. A call makes a row or two,
# and deletes up to `ROWS_AT_ONCE`: they stay few, with no process that counts.
SWEEP_CHANCE = 1 / 64
# The first character of a name that is no note's is this one or a later one. The other one is later
# than all that a name may have.
FIRST_CHARACTER, LAST_CHARACTER = "!", "\U0010ffff"


class LockRow(NamedTuple):
    """One row. It outlives its record, so that the next lease's fence is greater.

    ``expires`` and what follows is in microseconds since the epoch, by the database's clock.
    """

    key: str
    token: str = ""
    version: str = ""
    record: str = ""
    expires: int = 0
    began: int = 0
    fence: int = 0


class DatabaseStore(BaseStore):
    """Locks in a table of a database of the project: PostgreSQL, MariaDB or MySQL, or SQLite.

    A change reads its row, and writes it if it is still as it was read; otherwise it reads it anew.
    Several changes are one transaction. It is never the caller's: the store has connections of its
    own. Whether a lease is over is decided by the database's clock.
    """

    fences_are_times = True
    known_options: ClassVar[frozenset[str]] = frozenset({"DATABASE", "TIMEOUT"})

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.database: str = settings.option(
            "DATABASE", DEFAULT_DB_ALIAS, connections.settings.__contains__, "an alias of DATABASES"
        )
        most = LONGEST_KEY_CHARACTERS - records.LONGEST_NOTE_NAME - 1
        if len(settings.key_prefix) > most:
            raise settings.wrong(
                f"its KEY_PREFIX must have at most {most} characters: a column has no room"
            )
        seconds = settings.seconds("TIMEOUT", DEFAULT_TIMEOUT_SECONDS)
        self._connections = DatabaseConnections(self.database, seconds)
        connection_created.connect(self._connected)

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        if any(change.expect == FREE for change in changes) and chance.random() < SWEEP_CHANCE:
            self._run(_sweep)
        return self._run(partial(self._put, changes, least_fence))

    def get(self, names: Sequence[str]) -> builtins.list[Entry | None]:
        found: list[Entry | None] = []
        for at in range(0, len(names), ROWS_AT_ONCE):
            part = names[at : at + ROWS_AT_ONCE]
            rows, now = self._run(partial(_read, keys=[self.key(name) for name in part]))
            found += [_entry(name, rows.get(self.key(name)), now) for name in part]
        return found

    def list(self, prefix: str = "") -> Iterator[Entry]:
        rest = "AND (expires > %s OR (expires = %s AND name > %s)) "
        rest += f"ORDER BY expires, name LIMIT {ROWS_AT_ONCE}"
        seen: set[str] = set()
        end, key = 0, ""
        while rows := self._run(partial(self._live, COLUMNS, prefix, rest, [end, end, key])):
            for now, key, *columns in rows:
                row, name = LockRow(key, *columns), key[len(self.key("")) :]
                # One that was extended comes again.
                if key not in seen and (entry := _entry(name, row, now)):
                    yield entry
                seen.add(key)
                end = row.expires

    def count(self, prefix: str = "") -> int:
        return int(self._run(partial(self._live, "COUNT(*)", prefix, "", ()))[0][1])

    def may_have_given(self, name: str, fence: int | None) -> bool:
        rows, now = self._run(partial(_read, keys=[self.key(name)]))
        # A row that was swept had no later fence than that.
        return (fence or 0) <= max(
            now - RETENTION_MICROSECONDS, *(row.fence for row in rows.values()), 0
        )

    def close_idle(self) -> None:
        self._connections.close_idle()

    def _put(self, changes: Sequence[Change], least_fence: int, connection: Connection) -> Done:
        names = [change.name for change in changes]
        keys = [self.key(name) for name in names]
        for _ in range(ATTEMPTS):
            rows, now = _read(connection, keys)
            there = [_entry(name, rows.get(self.key(name)), now) for name in names]
            made = all(map(records.fits, changes, there))
            # What is to be removed may be written yet: its caller has given up, and a lock of the
            # server, or a standby, holds it up. It finds its rows changed then.
            is_early = not any(there) and all(isinstance(each.expect, Held) for each in changes)
            if not (made or (is_early and all(each.record is None for each in changes))):
                return Done(False, there)
            new = [
                _changed(change, rows.get(key, LockRow(key)), entry, now, least_fence)
                for change, key, entry in zip(changes, keys, there, strict=True)
            ]
            if _write(connection, rows, new):
                return Done(made, [_entry(*each, now) for each in zip(names, new, strict=True)])
        raise StoreUnavailable(self.alias, f"{keys} change too fast to be written")

    def _live(
        self, what: str, prefix: str, rest: str, parameters: Sequence[Any], connection: Connection
    ) -> builtins.list[tuple[Any, ...]]:
        """The database's clock, and what is asked of live locks, or notes."""
        if not prefix.isprintable():
            prefix = LAST_CHARACTER  # No name begins so, and PostgreSQL takes no NUL.
        first, last = self.key(prefix or FIRST_CHARACTER), self.key(prefix + LAST_CHARACTER)
        sql = (
            f"SELECT {connection.now}, {what} FROM {TABLE} "
            f"WHERE name >= %s AND name < %s AND expires > {connection.now} {rest}"
        )
        return [*connection.run(sql, [first, last, *parameters]).fetchall()]

    def _run(self, work: Callable[[Connection], T]) -> T:
        try:
            return self._connections.run(work)
        except (Error, OSError) as error:  # Such as too many open files.
            if interrupts(error):
                raise
            raise StoreUnavailable(self.alias, self._reason(error)) from error

    def _reason(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        if TABLE in text and ("no such table" in text or "exist" in text):
            return (
                f"{text}: run manage.py migrate django_tasklock --database={self.database}, with "
                "django_tasklock in INSTALLED_APPS and no router against it"
            )
        if "database is locked" in text:
            return (
                f"{text}: SQLite has one writer at a time, and the caller's own transaction may be "
                'it. Give the locks a file of their own, by OPTIONS["DATABASE"]'
            )
        return text

    def _connected(self, *, connection: Any, **_: Any) -> None:
        # Django makes or drops a test database, and PostgreSQL drops none that is in use.
        if is_above_databases(connection):
            self.close_idle()


def _read(connection: Connection, keys: Sequence[str]) -> tuple[dict[str, LockRow], int]:
    """Read rows that may be there, and the database's clock."""
    sql = (
        f"SELECT {connection.now}, {COLUMNS} FROM (SELECT 1 AS one) AS clock "
        f"LEFT JOIN {TABLE} ON name IN ({_marks(keys)})"
    )
    found = connection.run(sql, keys).fetchall()
    # Without any row there is one of NULLs, for the clock.
    rows = [LockRow(*columns) for _, *columns in found if columns[0] is not None]
    return {row.key: row for row in rows}, found[0][0]


def _write(connection: Connection, read: Mapping[str, LockRow], rows: Sequence[LockRow]) -> bool:
    """Write all rows, or none if any of them is not as it was read.

    Those that do not change are written too, or others might change them before the commit. In the
    order of their keys, so that no two transactions wait for each other.
    """
    if len(rows) == 1:
        return _write_row(connection, read.get(rows[0].key), rows[0])
    connection.begin()
    made = all(_write_row(connection, read.get(row.key), row) for row in sorted(rows))
    connection.end(commit=made)
    return made


def _write_row(connection: Connection, read: LockRow | None, row: LockRow) -> bool:
    if read is not None:
        sql = (
            f"UPDATE {TABLE} SET token = %s, version = %s, record = %s, expires = %s, began = %s, "
            "fence = %s WHERE name = %s AND expires = %s AND fence = %s AND version = %s"
        )
        parameters = [*row[1:], row.key, read.expires, read.fence, read.version]
        return bool(connection.run(sql, parameters).rowcount)
    try:
        connection.run(f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({_marks(row)})", row)
    except IntegrityError:  # Another caller was quicker.
        return False
    return True


def _sweep(connection: Connection) -> None:
    """Delete rows that nothing has used for a day, at most `ROWS_AT_ONCE`."""
    old = f"expires <= {connection.now} AND fence < {connection.now} - {RETENTION_MICROSECONDS}"
    sql = f"SELECT name FROM {TABLE} WHERE {old} LIMIT {ROWS_AT_ONCE}"
    keys = [key for (key,) in connection.run(sql).fetchall()]
    if keys:  # Some may have been used since they were read.
        connection.run(f"DELETE FROM {TABLE} WHERE name IN ({_marks(keys)}) AND {old}", keys)


def _changed(change: Change, row: LockRow, there: Entry | None, now: int, least: int) -> LockRow:
    """The row after a change that fits."""
    new_fence = max(now, row.fence + 1)
    if change.record is None:
        return LockRow(row.key, fence=new_fence if there is None else row.fence)
    entry = records.after(change, there, new_fence, least)
    if entry is None or entry is there or entry.record is None:
        return row
    record, text = entry.record, records.text_of_record(entry.record)
    ends = NEVER if entry.left is None else now + round(entry.left * MICROSECONDS)
    began, fence = now if entry.began is None else row.began, entry.fence or 0
    return LockRow(row.key, record["token"], record.get("version", ""), text, ends, began, fence)


def _entry(name: str, row: LockRow | None, now: int) -> Entry | None:
    """What the row says of the lock or the note ``name``; None: nothing is there."""
    if row is None or row.expires <= now:
        return None
    record, left = records.record_of(row.record), (row.expires - now) / MICROSECONDS
    entry = Entry(name, record, None if row.expires == NEVER else left)
    if record is None:
        return entry._replace(digest=records.digest_of(row.record.encode()))
    return entry._replace(fence=row.fence, began=row.began / MICROSECONDS)


def _marks(values: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(values))
