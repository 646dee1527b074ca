"""The statements in which the databases differ: the clock, acquire, and deletes with a limit."""

from __future__ import annotations

from collections.abc import Sequence

from .queue_statements import CHANNEL, QUEUE, waiter_before
from .statements import SWEPT_AT_ONCE, TABLE, Statements

__all__ = ["DIALECTS", "MariaDBStatements", "PostgreSQLStatements", "SQLiteStatements"]

_COLUMNS = "lock_key, token, expires, acquired, fence, owner"


def _values(now: str, ttl: str) -> str:
    """The row of a new lease; none while a waiter stands before the caller."""
    return (
        f"SELECT %(key)s, %(token)s, {now} + {ttl}, {now}, {now}, %(owner)s "
        f"FROM (SELECT 1 AS one) AS caller WHERE NOT {waiter_before(now)}"
    )


def _upsert(now: str, ttl: str, greatest: str) -> str:
    """Acquire, for PostgreSQL and SQLite. Returns no row if the lock is held."""
    over = "held.expires <= excluded.acquired"
    return (
        f"INSERT INTO {TABLE} AS held ({_COLUMNS}) {_values(now, ttl)} "
        "ON CONFLICT (lock_key) DO UPDATE SET "
        f"fence = CASE WHEN {over} THEN {greatest}(excluded.fence, held.fence + 1) "
        "ELSE held.fence END, "
        f"acquired = CASE WHEN {over} THEN excluded.acquired ELSE held.acquired END, "
        "token = excluded.token, expires = excluded.expires, owner = excluded.owner "
        f"WHERE {over} OR held.token = excluded.token "
        f"RETURNING {_COLUMNS}, {now} AS now"
    )


class PostgreSQLStatements(Statements):
    # The statement's time, not the clock's: a condition with a value that changes while the
    # statement runs could not use the index.
    now = "(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000)::bigint"
    _granted = f"WITH granted AS ({_upsert(now, '%(ttl)s::bigint', 'GREATEST')})"
    # The holder comes with the refusal, from the snapshot that the statement began with.
    _answer = (
        "SELECT granted.*, true FROM granted UNION ALL "
        f"SELECT {_COLUMNS}, {now}, false FROM {TABLE} "
        "WHERE lock_key = %(key)s AND NOT EXISTS (SELECT 1 FROM granted)"
    )
    acquire = f"{_granted} {_answer}"
    # Two transactions would be two waits for the disk, and the lock is held meanwhile.
    acquire_and_leave = (
        f"{_granted}, gone AS (DELETE FROM {QUEUE} "
        f"WHERE id = %(position)s AND EXISTS (SELECT 1 FROM granted)) {_answer}"
    )

    def _whole(self, parameter: str) -> str:
        return f"{parameter}::bigint"

    def _notifying(self, sql: str) -> str:
        # Only if somebody waits: PostgreSQL commits transactions that notify one after the other.
        return (
            f"WITH ended AS ({sql} RETURNING lock_key) SELECT (SELECT pg_notify('{CHANNEL}', "
            f"ended.lock_key) WHERE EXISTS (SELECT 1 FROM {QUEUE} AS queued "
            f"WHERE queued.lock_key = ended.lock_key AND queued.alive > {self.now})) FROM ended"
        )

    def _delete(self, where: str) -> str:
        return (
            f"DELETE FROM {TABLE} WHERE {where} AND lock_key IN "
            f"(SELECT lock_key FROM {TABLE} WHERE {where} LIMIT {SWEPT_AT_ONCE} "
            "FOR UPDATE SKIP LOCKED)"
        )


class MariaDBStatements(Statements):
    # In UTC: a time of the session's zone would come twice when the clocks are put back.
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    # The columns are assigned one after the other, each seeing those before it. After the token
    # was assigned, it is ours only if the lock is granted.
    acquire = (
        f"INSERT INTO {TABLE} ({_COLUMNS}) {_values(now, '%(ttl)s')} "
        "ON DUPLICATE KEY UPDATE "
        "fence = IF(expires <= VALUES(acquired), GREATEST(VALUES(fence), fence + 1), fence), "
        "acquired = IF(expires <= VALUES(acquired), VALUES(acquired), acquired), "
        "token = IF(expires <= VALUES(acquired), VALUES(token), token), "
        "owner = IF(token = VALUES(token), VALUES(owner), owner), "
        "expires = IF(token = VALUES(token), VALUES(expires), expires) "
        f"RETURNING {_COLUMNS}, {now}, token = %(token)s COLLATE utf8mb4_bin"
    )
    extended = rewritten = ""  # UPDATE … RETURNING is not in the versions that we support.

    def _delete(self, where: str) -> str:
        return f"DELETE FROM {TABLE} WHERE {where} LIMIT {SWEPT_AT_ONCE}"


class SQLiteStatements(Statements):
    # SQLite has no clock but the host's, which it reads in milliseconds. The store passes the same
    # clock in microseconds.
    now = "%(now)s"
    acquire = f"{_upsert(now, '%(ttl)s', 'MAX')}, 1"

    def _in_pairs(self, pairs: Sequence[str]) -> str:
        return f"(lock_key, token) IN (VALUES {', '.join(pairs)})"


DIALECTS = {
    "postgresql": PostgreSQLStatements(),
    "mysql": MariaDBStatements(),
    "sqlite": SQLiteStatements(),
}
"""by Django's ``vendor``"""
