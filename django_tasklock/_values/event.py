"""What happened to a lock: an entry of its history."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from .owner import Owner

Kind = Literal[
    "refused", "skipped", "waited", "lost", "cleared", "taken over", "given up", "adopted", "held"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the history of a lock.

    ``kind`` says what happened, ``owner`` to whom:

    * "refused": the owner asked for the lock, and waited ``seconds``; ``holder`` held it.
    * "skipped": the owner is a task whose call did not run. ``reason`` is as in its marker.
      ``holder`` had the lock, or is the task that does the work instead. A refusal, if there was
      one, is an event of its own.
    * "waited": the owner got the lock after more than a second: ``seconds``.
    * "lost": the owner's lease was over before its release; ``reason``: how that was noticed.
    * "cleared": the owner held the lock, and ``by`` removed its lease.
    * "taken over": the owner held the lock, and is gone; ``by`` is the process that noticed.
    * "given up": the owner's acquire or release was interrupted, or had no answer. With a
      ``reason``, the owner is a task that has failed without running: "held", "outage",
      "too_many_attempts" or "requeue_failed".
    * "adopted": the owner goes on under a lease that another one has detached.
    * "held": an operator, ``by``, holds the lock for ``seconds``; ``reason``: why.

    ``name`` of a permit is ``NAME#K``. ``at`` is by the clock of the store's server, where it has
    one. The owners have the fields for people; those that identify a process for ever (``boot``,
    ``pidns``, ``timens``, ``start``, ``group``) are None. Fields that do not apply are None.

    Refusals of the same process and task id by the same lease are one event for about a second.
    ``count`` is how many they were. ``at`` and ``owner`` are of the last of them, ``since`` is the
    moment of the first, and ``seconds`` is the longest wait. Of a single event ``count`` is 1, and
    ``since`` is None.
    """

    kind: Kind
    name: str
    store: str
    at: datetime
    owner: Owner
    holder: Owner | None = None
    seconds: float | None = None
    by: str | None = None
    reason: str | None = None
    count: int = 1
    since: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return asdict(self) | {
            "at": self.at.isoformat(),
            "owner": self.owner.as_dict(),
            "holder": None if self.holder is None else self.holder.as_dict(),
            "since": None if self.since is None else self.since.isoformat(),
        }
