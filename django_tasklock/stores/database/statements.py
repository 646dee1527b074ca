"""The statements of the store, as far as all databases share them.

A row is a lock, and it outlives its lease: a release sets ``expires`` to 0, and the next lease
writes over the row. So the next fence is drawn from the last one while the row is locked, and it is
greater whatever the clock says and however long the statement waited.

A row that nothing has used for `RETENTION_SECONDS` is swept. The next lease of its name then gets
the time as its fence, which is greater than the last one unless the database's clock was set back
by more than that.

``{now}`` is the time at which a statement began, in microseconds since the epoch. A statement that
waits for a row goes on with a time that is past: it may refuse a lock whose lease is just over, and
its own lease may end sooner, but never later than ``ttl`` after the caller asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from ..._values.owner import ADOPTIONS
from .queue_statements import LOOKED_AHEAD, QUEUE, QueueStatements

__all__ = ["RETENTION_SECONDS", "TABLE", "Parameters", "Statements"]

TABLE = "django_tasklock_lease"
"""the table of the model `LeaseRow`"""
RETENTION_SECONDS = 3600
"""how long a row is kept, at least, after its last lease was granted and has ended"""
SWEPT_AT_ONCE = 500
"""rows that one sweep deletes at most of each kind"""

Parameters = dict[str, Any]

_COLUMNS = "lock_key, token, expires, acquired, fence, owner"
_OURS = "lock_key = %(key)s AND token = %(token)s"


class Statements(QueueStatements):
    """The statements for one kind of database. A subclass sets `now` and `acquire`."""

    acquire: ClassVar[str]
    """Returns, if any, one row: those of `get`, and whether the lock was granted. A row that was
    not granted may be out of date. Parameters: ``key``, ``token``, ``ttl`` (microseconds),
    ``owner`` (JSON), and ``position``, the caller's position in the wait queue."""

    @cached_property
    def get(self) -> str:
        return f"{self._select} WHERE lock_key = %(key)s AND expires > {self.now}"

    @cached_property
    def turn(self) -> str:
        """The token and the owner of the lease that holds a lock, the position of the next waiter,
        and how many live waiters stand before ``position``: at most `LOOKED_AHEAD` are counted."""
        held = f"FROM {TABLE} WHERE lock_key = %(key)s AND expires > {self.now}"
        live = f"FROM {QUEUE} WHERE lock_key = %(key)s AND alive > {self.now}"
        return (
            f"SELECT (SELECT token {held}), (SELECT owner {held}),"
            f" (SELECT MIN(id) {live}), (SELECT COUNT(*) FROM "
            f"(SELECT 1 AS one {live} AND id < %(position)s LIMIT {LOOKED_AHEAD}) AS ahead)"
        )

    @cached_property
    def extend(self) -> str:
        return (
            f"UPDATE {TABLE} SET expires = {self.now} + {self._whole('%(ttl)s')} "
            f"WHERE {_OURS} AND expires > {self.now}"
        )

    @cached_property
    def rewrite(self) -> str:
        """Replace the owner of a lease: the one that was read ``before`` (empty: any of a lease
        that was never adopted), or the new owner itself. Waiters find that, and the end of the
        lease, when they look: none is notified."""
        # In JSON no text has quotes that are not escaped: only the key itself can be this.
        never = f"%(before)s = '' AND REPLACE(owner, '\"{ADOPTIONS}\":', '') = owner"
        expected = f"(owner = %(before)s OR owner = %(owner)s OR ({never}))"
        return (
            f"UPDATE {TABLE} SET owner = %(owner)s, "
            f"expires = {self.now} + {self._whole('%(ttl)s')} "
            f"WHERE {_OURS} AND expires > {self.now} AND {expected}{self.rewritten}"
        )

    rewritten: ClassVar[str] = " RETURNING fence"
    """the end of `rewrite` that returns the fence; empty where a database cannot"""

    @cached_property
    def fence(self) -> str:
        """The fence of a lease, which may be over."""
        return f"SELECT fence FROM {TABLE} WHERE {_OURS}"

    @cached_property
    def raise_fence(self) -> str:
        fence = self._whole("%(fence)s")
        return (
            f"UPDATE {TABLE} SET fence = CASE WHEN fence < {fence} THEN {fence} ELSE fence END "
            f"WHERE {_OURS} AND expires > {self.now}"
        )

    @cached_property
    def release(self) -> str:
        # It keeps the token: `released` tells a release whose reply was lost from a lost lease.
        return self._notifying(
            f"UPDATE {TABLE} SET expires = 0, owner = '' WHERE {_OURS} AND expires > {self.now}"
        )

    @cached_property
    def released(self) -> str:
        return f"SELECT 1 FROM {TABLE} WHERE {_OURS} AND expires = 0"

    @cached_property
    def clear(self) -> str:
        return self._notifying(
            f"UPDATE {TABLE} SET expires = 0, owner = '', token = '' "
            f"WHERE {_OURS} AND expires > {self.now}"
        )

    def _notifying(self, sql: str) -> str:
        """``sql``, which ends a lease; where the database can, it notifies waiters as well."""
        return sql

    def held(self, keys: Sequence[str], *, whole: bool = False) -> tuple[str, Parameters]:
        """The keys of those that are held; with ``whole`` their rows."""
        parameters = {f"key{at}": key for at, key in enumerate(keys)}
        listed = ", ".join(f"%({each})s" for each in parameters)
        what = self._select if whole else f"SELECT lock_key FROM {TABLE}"
        return f"{what} WHERE lock_key IN ({listed}) AND expires > {self.now}", parameters

    def live(self, first: str, last: str, *, count: bool = False) -> tuple[str, Parameters]:
        """The live locks whose keys are in a range, without ``last``, and without the notes' range
        (parameters ``notes`` and ``past_notes``)."""
        what = f"SELECT COUNT(*) FROM {TABLE}" if count else self._select
        where = (
            f"expires > {self.now} AND lock_key >= %(first)s "
            "AND NOT (lock_key >= %(notes)s AND lock_key < %(past_notes)s)"
        )
        if last:
            where += " AND lock_key < %(last)s"
        return f"{what} WHERE {where}", {"first": first, "last": last}

    def extend_many(self, batch: Sequence[tuple[str, str, int]]) -> tuple[str, Parameters]:
        """Extend leases, each a key, a token, and a ttl in microseconds."""
        parameters: Parameters = {}
        pairs, cases = [], []
        for at, (key, token, ttl) in enumerate(batch):
            parameters |= {f"key{at}": key, f"token{at}": token, f"ttl{at}": ttl}
            pairs.append(f"(%(key{at})s, %(token{at})s)")
            cases.append(
                f"WHEN lock_key = %(key{at})s AND token = %(token{at})s "
                f"THEN {self._whole(f'%(ttl{at})s')}"
            )
        same = len({ttl for _, _, ttl in batch}) == 1
        # Leases are mostly renewed for the same ttl; the cases are compared one after the other.
        ttl_of_row = self._whole("%(ttl0)s") if same else f"CASE {' '.join(cases)} END"
        where = f"{self._in_pairs(pairs)} AND expires > {self.now}"
        sql = f"UPDATE {TABLE} SET expires = {self.now} + {ttl_of_row} WHERE {where}"
        return sql + self.extended, parameters

    extended: ClassVar[str] = " RETURNING lock_key, token"
    """the end of `extend_many` that returns what was extended; empty where a database cannot"""

    def ours(self, batch: Sequence[tuple[str, str, int]]) -> tuple[str, Parameters]:
        """Which leases of a batch hold their locks."""
        parameters: Parameters = {}
        pairs = []
        for at, (key, token, _) in enumerate(batch):
            parameters |= {f"key{at}": key, f"token{at}": token}
            pairs.append(f"(%(key{at})s, %(token{at})s)")
        where = f"{self._in_pairs(pairs)} AND expires > {self.now}"
        return f"SELECT lock_key, token FROM {TABLE} WHERE {where}", parameters

    @cached_property
    def sweeps(self) -> Sequence[str]:
        """Delete rows that nothing has used for long: the released ones, those whose lease ended by
        itself, and those of dead waiters. The conditions stand outside of the inner query too, so
        that a row that was granted meanwhile is not deleted."""
        old = f"{self.now} - {RETENTION_SECONDS * 1_000_000}"
        return [
            self._delete(f"expires = 0 AND fence < {old}"),
            # A quorum's fence may be ahead of this database's clock, and must not be forgotten.
            self._delete(f"expires > 0 AND expires < {old} AND fence < {old}"),
            self.forget_dead,
        ]

    @cached_property
    def _select(self) -> str:
        return f"SELECT {_COLUMNS}, {self.now} FROM {TABLE}"

    def _whole(self, parameter: str) -> str:
        """A parameter that is a large whole number, for a database that must know its type."""
        return parameter

    def _in_pairs(self, pairs: Sequence[str]) -> str:
        return f"(lock_key, token) IN ({', '.join(pairs)})"

    def _delete(self, where: str) -> str:
        return (
            f"DELETE FROM {TABLE} WHERE {where} AND lock_key IN "
            f"(SELECT lock_key FROM {TABLE} WHERE {where} LIMIT {SWEPT_AT_ONCE})"
        )
