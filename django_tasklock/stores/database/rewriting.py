"""A lease in the database goes on without its process, or in another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._values.owner import ADOPTIONS
from ..base import Grant
from ..record import may_rewrite
from .calls import DatabaseCalls
from .rows import microseconds, owner_of, owner_text

__all__ = ["DatabaseRewriting"]


class DatabaseRewriting(DatabaseCalls):
    """The part of `DatabaseStore` that replaces the owner of a lease.

    One statement; on MariaDB a second one reads the fence, which does not change. Where it depends
    on the present owner whether the lease may be rewritten, a statement before them reads that
    owner, and no other one is replaced.
    """

    supports_rewrite = True

    def rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
    ) -> Grant | None:
        asked = {
            "key": self.key(name),
            "token": token,
            "ttl": microseconds(ttl),
            "owner": owner_text(owner),
            "before": "",
        }
        if mark is None and not owner.get(ADOPTIONS):
            return self._rewritten(asked)
        grant = None
        while grant is None:
            row = self.row(self.statements.get, {"key": asked["key"]})
            held = None if row is None or row.token != token else owner_of(row)
            if row is None or held is None:
                return None
            if row.owner != asked["owner"] and not may_rewrite(held, owner, mark):
                return None
            # None: somebody else has rewritten it in between.
            grant = self._rewritten({**asked, "before": row.owner})
        return grant

    def _rewritten(self, asked: Mapping[str, Any]) -> Grant | None:
        answer = self.run(self.statements.rewrite, asked)
        if not answer.rows and (self.statements.rewritten or answer.count == 0):
            return None
        rows = answer.rows or self.run(self.statements.fence, asked).rows
        return Grant(fence=rows[0][0] if rows else None)
