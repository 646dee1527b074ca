"""The messages on a waiter's channel: that it has the lock, or who has it before its turn.

Anybody may publish there. A message that is not exactly as notify_waiters.lua writes it is ignored.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..._values.arguments import LONGEST_TTL_SECONDS
from ..record import fence_of

__all__ = ["HandedOver", "NextHolder", "read"]

NUMBER = rb"([1-9][0-9]{0,17})"
_handed_over = re.compile(rb"%b:%b" % (NUMBER, NUMBER)).fullmatch
_next_holder = re.compile(rb"=%b:%b:%b:(.+)" % (NUMBER, NUMBER, NUMBER), re.DOTALL).fullmatch


class HandedOver(NamedTuple):
    """The waiter holds the lock."""

    fence: int
    moment: int
    """since when, by the server's clock, in microseconds"""


class NextHolder(NamedTuple):
    """Another process holds the lock, and the waiter is the next."""

    fence: bytes
    moment: int
    """since when, by the server's clock, in microseconds"""
    ttl: float
    """seconds that the lease had left at that moment"""
    value: bytes
    """of the lock's key"""


def read(message: bytes, question: bytes) -> HandedOver | NextHolder | None:
    """Parse a message.

    ``question`` is the waiter's token and the number of its last question. Returns None for a
    message that is for another question, or is not one of ours.
    """
    start = question + b":"
    if not message.startswith(start):
        return None
    news = message[len(start) :]
    if found := _handed_over(news):
        fence, moment = map(fence_of, found.groups())
        return None if fence is None or moment is None else HandedOver(fence, moment)
    if found := _next_holder(news):
        fence_text, moment_text, ttl_ms, value = found.groups()
        moment, ttl = fence_of(moment_text), int(ttl_ms) / 1000
        if fence_of(fence_text) is not None and moment is not None and ttl <= LONGEST_TTL_SECONDS:
            return NextHolder(fence_text, moment, ttl, value)
    return None
