"""``debounce``: of calls that keep coming, the last one runs.

Each call sends its message, to be delivered when the debounce is over. Its moment is in the
message's header, and after the message was sent a note of the store names it as the last one. A
message whose turn comes is replaced, and skipped, if the note names a later moment. So a message is
replaced only by one that was sent. Where the note is missing, because the store has lost its data
or a sender was killed before it wrote it, a message more runs, and never one less.

A moment is the sender's time of day, but always later than the one in the note: the clocks of hosts
may differ. When the last message starts, the note says so: messages of earlier calls that are
still on their way are skipped, and the next call begins a new burst.

With ``debounce_max`` a burst ends that long after its first call, whether its last message has
started or not. The calls after it are a new burst, and that message is kept: none of them replaces
it, so calls that keep coming never push the work away for ever.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .._values.chance import chance
from .._values.describe import printable
from .._values.owner_record import recorded
from ..exceptions import StoreUnavailable
from .base import TaskBase
from .delivery import Delivery
from .due import seconds_until
from .headers import HEADER, MOMENT
from .unique import is_own

__all__ = ["begin", "debounces", "drop", "replaced_by", "send_debounced"]

logger = logging.getLogger("django_tasklock")

NANOSECONDS = 1_000_000_000
WAITING_NOTE_SECONDS = 86400.0
"""how long after its time a message may start that has replaced others"""
STARTED_NOTE_SECONDS = 3600.0
"""how long after the last message has started earlier ones are skipped"""
LAST_MOMENT = 2**63 - 1
"""in nanoseconds since the epoch, in the year 2262: a note with a later one is not ours"""
NOTE_ATTEMPTS = 20
"""how often a note is written, at most, where others write it at the same time"""


class Burst(NamedTuple):
    """The content of the note: calls under one lock that belong together."""

    last: int
    """the moment of the last message, in nanoseconds since the epoch"""
    task_id: str
    """of the last message"""
    first: int
    """when the first call came, in nanoseconds by its sender's clock"""
    kept: int = 0
    """the moment of the last message of the burst before, while it has not started; or 0"""
    started: bool = False
    """whether the last message has started"""

    @classmethod
    def read(cls, text: str | None) -> Burst | None:
        """Return the note with this text; None for none, and for a text that is not a note."""
        with suppress(ValueError, TypeError, RecursionError):
            last, task_id, first, kept, started = json.loads(text or "")
            if _are_moments(last, first, kept) and isinstance(task_id, str):
                return cls(last, task_id, first, kept, bool(started))
        return None

    def text(self) -> str:
        """Return the text of the note."""
        return json.dumps(self, separators=(",", ":"))


def _are_moments(*values: object) -> bool:
    return all(type(value) is int and 0 <= value <= LAST_MOMENT for value in values)


def debounces(task: TaskBase, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Return whether a message with these options is debounced.

    Not a retry, a requeued message, a replacement, or a call with a countdown or an ETA.
    """
    if task.debounce is None or task.app.conf.task_always_eager:
        return False
    if any(options.get(option) for option in ("countdown", "eta", "replaced_task_nesting")):
        return False
    return not is_own(task, task_id, options)


def send_debounced(
    task: TaskBase,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task_id: str,
    options: dict[str, Any],
    send: Callable[..., Any],
) -> Any:
    """Call ``send`` with options that delay the message, and note it as the last one.

    Where the store does not answer, the message is sent all the same. Returns what ``send``
    returns; raises what it raises, and `TypeError` or `ValueError` for a wrong lock name.
    """
    name = task.lock_name_of(args, kwargs)
    bursts, now = _Bursts(task, name), time.time_ns()
    assert task.debounce is not None
    try:
        text = bursts.get()
    except StoreUnavailable as error:
        # It has no moment, so that no other one replaces it.
        logger.warning(
            "%s[%s] is sent, and is not debounced: %s", task.name, task_id, printable(error)
        )
        return send(**{**options, "countdown": task.debounce})
    seen = Burst.read(text)
    # Two senders that add to the same moment should not come to the same one.
    moment = now if seen is None else max(now, seen.last + chance.randrange(1, 1000))
    mine = _joined(seen, moment, task_id, now, task.debounce_max)
    delay = task.debounce
    if task.debounce_max is not None:
        left = (mine.first - now) / NANOSECONDS + task.debounce_max
        delay = max(min(delay, left), 0.0)
    expires = options.get("expires", task.expires)
    if expires is not None and seconds_until(task, expires) <= delay:
        return send(**options)
    headers = options["headers"]
    marked = {**headers, HEADER: {**headers[HEADER], MOMENT: moment}}
    result = send(**{**options, "headers": marked, "countdown": delay or None})
    try:
        bursts.note(mine, text, task.debounce_max, now, delay)
    except StoreUnavailable as error:
        logger.warning(
            "%s[%s] was sent, and does not replace earlier calls: %s",
            task.name, task_id, printable(error),
        )  # fmt: skip
    return result


def replaced_by(delivery: Delivery, name: str) -> str | None:
    """Return the task id of the later message that replaces this one, or None.

    It may be empty. Raises `StoreUnavailable`.
    """
    if delivery.moment is None:
        return None
    burst = Burst.read(_Bursts(delivery.task, name).get())
    return burst.task_id if burst is not None and _is_replaced(burst, delivery.moment) else None


def begin(delivery: Delivery, name: str, *, again: bool) -> str | None:
    """Note that the message starts. Returns what `replaced_by` returns: if not None, it does not.

    Called under the lock. ``again``: an earlier run of the message has started, and died. Raises
    `StoreUnavailable`.
    """
    moment = delivery.moment
    if moment is None:
        return None
    bursts = _Bursts(delivery.task, name)
    text = bursts.get()
    for _ in range(NOTE_ATTEMPTS):
        burst = Burst.read(text)
        if burst is None or moment >= burst.last:
            burst = Burst(moment, recorded(delivery.id), moment, started=True)
        elif moment == burst.kept:
            burst = burst._replace(kept=0)
        else:
            return None if again else burst.task_id
        text = bursts.write(burst, text, STARTED_NOTE_SECONDS)
        if text is None:
            return None
    return None


def drop(task: TaskBase, name: str, moment: Any) -> None:
    """Note that the last message will not start: it is revoked, or has expired.

    The calls before it are over with it. Raises `StoreUnavailable`.
    """
    bursts = _Bursts(task, name)
    text = bursts.get()
    burst = Burst.read(text)
    if burst is not None and burst.last == moment and not burst.started:
        if burst.kept:
            burst = burst._replace(last=burst.kept, task_id="", kept=0)
        else:
            burst = burst._replace(started=True)
        bursts.write(burst, text, WAITING_NOTE_SECONDS)


class _Bursts:
    """The note of the calls of ``task`` under the lock ``name``."""

    def __init__(self, task: TaskBase, name: str) -> None:
        self._locks = task.locks
        self._key = f"debounce {task.name} {name}"

    def get(self) -> str | None:
        return self._locks.store.get_note(self._key)

    def write(self, burst: Burst, over: str | None, ttl: float) -> str | None:
        """Write the note over the text ``over``. Returns the other text that is there instead."""
        other = self._locks.store.reserve(self._key, burst.text(), ttl, over=over or "")
        return None if other is None else str(other)

    def note(
        self, mine: Burst, over: str | None, longest: float | None, now: int, delay: float
    ) -> None:
        """Note a message that was sent, unless a later one is noted."""
        for _ in range(NOTE_ATTEMPTS):
            over = self.write(mine, over, delay + WAITING_NOTE_SECONDS)
            if over is None:
                return
            seen = Burst.read(over)
            if seen is not None and seen.last >= mine.last:
                return
            mine = _joined(seen, mine.last, mine.task_id, now, longest)


def _joined(
    seen: Burst | None, moment: int, task_id: str, now: int, longest: float | None
) -> Burst:
    """Return the burst after a call, which joins the burst ``seen`` or begins a new one."""
    task_id = recorded(task_id)
    if seen is None or seen.started:
        return Burst(moment, task_id, now)
    over = longest is not None and now >= seen.first + longest * NANOSECONDS
    if over and not seen.kept:
        return Burst(moment, task_id, now, kept=seen.last)
    return Burst(moment, task_id, seen.first, seen.kept)


def _is_replaced(burst: Burst, moment: int) -> bool:
    return moment < burst.last and moment != burst.kept
