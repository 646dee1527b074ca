"""What is sent: units of one job or of a chain of some, some of them twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

__all__ = ["Message", "Unit", "plan"]

DUPLICATES = 0.05
CHAINS = 0.1
LONG_SECONDS, SHORT_SECONDS = (0.7, 1.5), (0.01, 0.15)
JOBS_PER_REDELIVERY, REDELIVERED_SECONDS = 80, (9.5, 10.5)
"""one of so many jobs takes longer than the visibility timeout: Redis delivers its message again
while the body runs"""


@dataclass(frozen=True)
class Message:
    """One message. ``end`` and ``retries``: how its bodies end, see `tests.chaos_tasks.tasks`."""

    id: str
    task: str
    job: int
    seconds: float
    end: str = "return"
    retries: int = 0

    @property
    def args(self) -> list[object]:
        return [self.job, self.seconds, self.end, self.retries]


@dataclass(frozen=True)
class Unit:
    """The messages of a chain, the first of which is sent; most have one."""

    messages: tuple[Message, ...]
    duplicate: bool = False

    @property
    def jobs(self) -> set[int]:
        return {message.job for message in self.messages}


def plan(messages: int, chance: Random) -> Iterator[Unit]:
    """Units of so many messages in all; jobs are numbered from 1 on."""
    left, job = messages, 0
    while left > 0:
        length = min(left, chance.choice([2, 3])) if chance.random() < CHAINS else 1
        unit = Unit(tuple(_message(job + 1 + link, length, chance) for link in range(length)))
        job += length
        left -= length
        yield unit
        while left >= length and chance.random() < DUPLICATES:
            left -= length
            yield Unit(tuple(_again(each, chance) for each in unit.messages), duplicate=True)


def _message(job: int, length: int, chance: Random) -> Message:
    seconds = round(chance.uniform(*(LONG_SECONDS if chance.random() < 0.04 else SHORT_SECONDS)), 3)
    kind = chance.random()
    if length == 1 and kind < 0.01:
        return Message(_id(chance), "poison", job, 0.02, "kill")
    if length == 1 and kind < 0.02:
        return Message(_id(chance), "skip", job, seconds, "raise")
    if job % JOBS_PER_REDELIVERY == 0:
        seconds = round(chance.uniform(*REDELIVERED_SECONDS), 3)
        return Message(_id(chance), chance.choice(["skip", "retry"]), job, seconds)
    # The second of two calls is not sent where the task is unique, nor is the rest of its chain.
    tasks = ["skip"] * 5 + ["retry"] * 3 + ["alone"] * 2 + (["unique"] * 2 if length == 1 else [])
    if length == 1 and kind < 0.12:
        return Message(_id(chance), "once", job, round(chance.uniform(0.3, 1.2), 3))
    retries = chance.choice([1, 2]) if kind > 0.9 else 0
    return Message(_id(chance), chance.choice(tasks), job, seconds, retries=retries)


def _again(message: Message, chance: Random) -> Message:
    return Message(
        _id(chance), message.task, message.job, message.seconds, message.end, message.retries
    )


def _id(chance: Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))
