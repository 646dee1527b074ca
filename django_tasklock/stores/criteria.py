"""What a search asks of a lock."""

from __future__ import annotations

from dataclasses import dataclass

from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .._values.owner import Owner

__all__ = ["Criteria"]


@dataclass(frozen=True, slots=True)
class Criteria:
    """All of these must be true of a lock that a search finds.

    ``prefix``: its name begins with it. ``words``, casefolded: each occurs in its name, or in the
    task, task id, host, pid, or operator and reason of its owner, whatever the case there.
    ``task`` and ``host``: its owner has exactly these. ``within``: it ends within so many seconds.
    ``gone``: its owner's process is known to have ended. ``cooling``: its holder has released it.
    """

    prefix: str = ""
    words: tuple[str, ...] = ()
    task: str | None = None
    host: str | None = None
    within: float | None = None
    gone: bool = False
    cooling: bool = False

    @classmethod
    def words_of(cls, query: str) -> tuple[str, tuple[str, ...]]:
        """The prefix and the words of what somebody typed: the prefix ends with a ``*``."""
        words = query.split()
        prefix = next((word for word in words if word.endswith("*") and word != "*"), "")
        return prefix[:-1], tuple(word.casefold() for word in words if word != prefix)

    @property
    def of_owner(self) -> bool:
        """Whether the name alone never decides."""
        return self.task is not None or self.host is not None or self.gone or self.cooling

    def matches(self, info: LockInfo, liveness: Liveness) -> bool:
        """Whether the lock is to be found."""
        if not info.name.startswith(self.prefix):
            return False
        if self.within is not None and (info.ttl is None or info.ttl > self.within):
            return False
        if self.of_owner:
            owner = info.owner
            if (
                (self.task is not None and owner.task != self.task)
                or (self.host is not None and owner.host != self.host)
                or (self.cooling and not info.cooling)
                or (self.gone and not liveness.is_gone(owner))
            ):
                return False
        missing = self.not_in_name(info.name)
        return not missing or all(word in _text_of(info.owner) for word in missing)

    def not_in_name(self, name: str) -> tuple[str, ...]:
        """The words that do not occur in a lock's name."""
        if not self.words:
            return ()
        folded = name.casefold()
        return tuple(word for word in self.words if word not in folded)


def _text_of(owner: Owner) -> str:
    values = (owner.task, owner.task_id, owner.host, owner.pid, owner.held_by, owner.reason)
    return "\n".join(str(value) for value in values if value is not None).casefold()
