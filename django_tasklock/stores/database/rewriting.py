"""A lease in the database goes on without its process, or in another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._values.owner import MARK
from ..base import Grant
from .calls import DatabaseCalls
from .rows import microseconds, owner_text

__all__ = ["DatabaseRewriting"]


class DatabaseRewriting(DatabaseCalls):
    """The part of `DatabaseStore` that replaces the owner of a lease.

    One statement; on MariaDB a second one reads the fence, which does not change.
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
            # In JSON no text has quotes that are not escaped: only the mark itself can be this.
            "mark": "" if mark is None else owner_text({MARK: mark})[1:-1],
        }
        answer = self.run(self.statements.rewrite, asked)
        if not answer.rows and (self.statements.rewritten or answer.count == 0):
            return None
        rows = answer.rows or self.run(self.statements.fence, asked).rows
        return Grant(fence=rows[0][0] if rows else None)
