"""Leases in a table of a database of the project."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..._values.lock_info import LockInfo
from ..._values.tokens import chance
from ...exceptions import StoreUnavailable
from ..base import Extension, Finding, Grant, Owner, Refusal, Waiter
from ..lease_notes import NAME_PREFIX
from .queue_statements import LAST_POSITION
from .rewriting import DatabaseRewriting
from .rows import Queued, Row, info_of, microseconds, owner_text
from .statements import Parameters
from .waiter import DatabaseWaiter

__all__ = ["DatabaseStore"]

MAX_QUESTIONS = 10
"""how often the store asks for a lock that was neither free nor held"""
SWEEP_CHANCE = 1 / 64
"""how many calls of `acquire` sweep first. A call makes one row, a sweep deletes up to 1000: rows
that are no longer needed stay few, with no process that counts"""
ROWS_PER_STATEMENT = 500
"""rows or names in one statement"""


class DatabaseStore(DatabaseRewriting):
    """One row for each lock, in the table of the model `LeaseRow`.

    Every verb is one statement, in a transaction of its own and on a connection of the store's own,
    so the caller's transaction neither hides a lease nor takes it back. Whether a lease is over is
    decided by the database's clock; SQLite has the host's. Some answers need a second statement: on
    SQLite a refusal, on MariaDB a refusal while others wait, and a batch of which a lease is over.
    A clear without a token asks for the holder's first.

    PostgreSQL, MariaDB 10.5 and SQLite 3.35, or newer. MySQL and Oracle are refused.
    """

    supports_listing = True
    atomic_release = True
    supports_fence = True
    supports_waiting = True
    raises_fences = True

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        if chance.random() < SWEEP_CHANCE:
            self.sweep()
        return self.ask(name, token, ttl, owner_text(owner), LAST_POSITION)

    def ask(self, name: str, token: str, ttl: float, owner: str, position: int) -> Grant | Refusal:
        """`acquire`, for a caller with a position in the wait queue.

        Returns a `Refusal` with the next waiter if the lock is free and it is that one's turn. With
        the lock the caller has left the queue, if the statements have `acquire_and_leave`.
        """
        acquire = self.statements.acquire
        if position != LAST_POSITION:
            acquire = self.statements.acquire_and_leave or acquire
        asked: Parameters = {
            "key": self.key(name),
            "token": token,
            "ttl": microseconds(ttl),
            "owner": owner,
            "position": position,
        }
        for _ in range(MAX_QUESTIONS):
            row = self.row(acquire, asked) or self.row(self.statements.get, asked)
            if row is None or not (row.granted or row.expires > row.now):
                first = next(self.queued(name, 1), None)
                if first is not None and first.position < position:
                    return Refusal(info_of(first.as_row(self.key(name)), name, self.alias))
            elif row.granted:
                return Grant(fence=row.fence)
            elif row.token == token:
                # Asked again, with somebody in the queue.
                if self.extend(name, token, ttl):
                    if acquire is self.statements.acquire_and_leave:
                        self.run(self.statements.leave, asked)
                    return Grant(fence=row.fence)
            else:
                return Refusal(self._info(row))
            # Somebody took the lock or gave it back while the statement ran.
        raise StoreUnavailable(
            self.alias, f"{name!r} was neither free nor held, {MAX_QUESTIONS} times"
        )

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        asked = {"key": self.key(name), "token": token, "ttl": microseconds(ttl)}
        return self.run(self.statements.extend, asked).count > 0

    def extend_many(self, batch: Sequence[Extension]) -> list[bool]:
        if not batch:
            return []
        asked = [(self.key(each.name), each.token, microseconds(each.ttl)) for each in batch]
        answer = self.run(*self.statements.extend_many(asked))
        pairs = {(key, token) for key, token, _ in asked}
        if self.statements.extended:
            extended = set(answer.rows)
        elif answer.count == len(pairs):
            extended = pairs
        else:
            extended = set(self.run(*self.statements.ours(asked)).rows)
        return [(key, token) in extended for key, token, _ in asked]

    def raise_fence(self, name: str, token: str, fence: int, proof: Any = None) -> bool:
        asked = {"key": self.key(name), "token": token, "fence": fence}
        return self.run(self.statements.raise_fence, asked).count > 0

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        asked = {"key": self.key(name), "token": token}
        answer = self.run(self.statements.release, asked)
        if answer.count == 0 and answer.repeated:
            return self.run(self.statements.released, asked).rows != []
        return answer.count > 0

    def clear(self, name: str, token: str | None = None) -> bool:
        if token is None:
            # Sent again after a lost reply, a clear without a token would end the next lease.
            held = self.row(self.statements.get, {"key": self.key(name)})
            return held is not None and self.clear(name, held.token)
        asked, repeated = {"key": self.key(name), "token": token}, False
        # A caller that was refused for a waiter's turn knows that waiter as the holder.
        for sql in (self.statements.clear, self.statements.remove):
            answer = self.run(sql, asked)
            if answer.count > 0:
                return True
            repeated = repeated or answer.repeated
        if repeated:
            raise StoreUnavailable(self.alias, f"no answer: {name!r} may have been cleared")
        return False

    def waiter(self, name: str, token: str, ttl: float, owner: Mapping[str, Any]) -> Waiter:
        return DatabaseWaiter(self, name, token, ttl, owner)

    def waiters(self, name: str, limit: int = 100) -> builtins.list[Owner]:
        return [each.as_owner() for each in self.queued(name, limit)]

    def queued(self, name: str, limit: int) -> Iterator[Queued]:
        """The live waiters of a lock, the next one first."""
        asked = {"key": self.key(name), "limit": limit}
        return (Queued(*row) for row in self.run(self.statements.queued, asked).rows)

    def get(self, name: str) -> LockInfo | None:
        row = self.row(self.statements.get, {"key": self.key(name)})
        return None if row is None else self._info(row)

    def held(self, names: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(names), ROWS_PER_STATEMENT):
            keys = [self.key(name) for name in names[start : start + ROWS_PER_STATEMENT]]
            found.update(self.name(key) for (key,) in self.run(*self.statements.held(keys)).rows)
        return found

    def get_many(self, names: Sequence[str]) -> builtins.list[LockInfo | None]:
        found: dict[str, LockInfo] = {}
        for start in range(0, len(names), ROWS_PER_STATEMENT):
            keys = [self.key(name) for name in names[start : start + ROWS_PER_STATEMENT]]
            infos = self._infos(*self.statements.held(keys, whole=True))
            found.update((info.name, info) for info in infos)
        return [found.get(name) for name in names]

    def list(self, prefix: str = "", limit: int | None = None, offset: int = 0) -> list[LockInfo]:
        sql, parameters = self._live(prefix)
        # PostgreSQL knows no LIMIT -1, and MariaDB and SQLite no OFFSET without a LIMIT.
        parameters |= {"limit": 2**62 if limit is None else limit, "offset": offset}
        sql += " ORDER BY expires, lock_key LIMIT %(limit)s OFFSET %(offset)s"
        return self._infos(sql, parameters)

    def count(self, prefix: str = "") -> int:
        return int(self.run(*self._live(prefix, count=True)).rows[0][0])

    def scan(self, prefix: str = "") -> Iterator[LockInfo]:
        sql, parameters = self._live(prefix)
        sql += " AND lock_key > %(after)s ORDER BY lock_key LIMIT %(limit)s"
        after = ""
        while True:
            rows = self.run(sql, {**parameters, "after": after, "limit": ROWS_PER_STATEMENT}).rows
            for row in rows:
                yield self._info(Row(*row))
            if len(rows) < ROWS_PER_STATEMENT:
                return
            after = rows[-1][0]

    def walk(self, prefix: str = "") -> Iterator[LockInfo]:
        sql, parameters = self._live(prefix)
        sql += (
            " AND (expires > %(end)s OR (expires = %(end)s AND lock_key > %(after)s)) "
            "ORDER BY expires, lock_key LIMIT %(limit)s"
        )
        asked = {**parameters, "end": 0, "after": "", "limit": ROWS_PER_STATEMENT}
        seen: set[str] = set()
        while rows := [Row(*row) for row in self.run(sql, asked).rows]:
            # A lease that was extended comes again.
            yield from (self._info(row) for row in rows if row.key not in seen)
            seen.update(row.key for row in rows)
            asked |= {"end": rows[-1].expires, "after": rows[-1].key}

    def check(self) -> Iterable[Finding]:
        self.count()
        return ()

    def sweep(self) -> int:
        """Delete rows that nothing has used for an hour, at most 1000 of them, and dead waiters.

        `acquire` does that now and then. Returns how many were deleted.
        """
        return sum(self.run(sql).count for sql in self.statements.sweeps)

    def _live(self, prefix: str, *, count: bool = False) -> tuple[str, Parameters]:
        first, notes = self.key(prefix), self.key(NAME_PREFIX)
        if not prefix.isprintable():
            # No name has such a character, and PostgreSQL takes no NUL: an empty range.
            first, last = "b", "a"
        else:
            last = _after(first)
        sql, parameters = self.statements.live(first, last, count=count)
        return sql, {**parameters, "notes": notes, "past_notes": _after(notes)}

    def _infos(self, sql: str, parameters: Parameters) -> builtins.list[LockInfo]:
        return [self._info(Row(*row)) for row in self.run(sql, parameters).rows]

    def _info(self, row: Row) -> LockInfo:
        return info_of(row, self.name(row.key), self.alias)


def _after(prefix: str) -> str:
    """The first text, in the order of code points, after all that begin with ``prefix``; an empty
    one if there is none."""
    while prefix:
        code = ord(prefix[-1]) + 1
        if code == 0xD800:
            code = 0xE000  # What is between them is no text.
        if code <= 0x10FFFF:
            return prefix[:-1] + chr(code)
        prefix = prefix[:-1]
    return ""
