"""Which of the waiters of a process reads for all of them."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from django_tasklock import clock
from django_tasklock.stores.redis import readers as module
from django_tasklock.stores.redis.mailbox import Mailbox
from django_tasklock.stores.redis.readers import Readers
from tests.steps import LONG, Meanwhile, until


class Ear:
    """What is read is what a test says: a call made by whoever reads, until it returns true."""

    def __init__(self) -> None:
        self.readers = Readers()
        self.reading: list[Mailbox] = []
        self.heard: queue.Queue[Callable[[], object]] = queue.Queue()

    def read(self, box: Mailbox, deadline: float) -> None:
        self.reading.append(box)
        while not self.heard.get(timeout=LONG)():
            pass

    def waiter(self, box: Mailbox, seconds: float = LONG) -> Meanwhile[None]:
        """One who listens at this mailbox."""
        return Meanwhile(lambda: self.readers.listen(box, clock.now() + seconds, self.read))

    def two(self, first: Mailbox, second: Mailbox) -> tuple[Meanwhile[None], Meanwhile[None]]:
        """One who reads at the first mailbox, and one who sleeps at the second."""
        one = self.waiter(first)
        self.until_read_by(first)
        other = self.waiter(second)
        self.until_asleep(second)
        return one, other

    def says(self, *what: Callable[[], object]) -> None:
        """Let who reads do all this, and stop reading after it."""

        def done() -> bool:
            for call in what:
                call()
            return True

        self.heard.put(done)

    def tells(self, box: Mailbox, waiter: Meanwhile[None]) -> None:
        """Let who reads bring this waiter its news, which ends its waiting."""
        self.says(box.tell)
        waiter.result()

    def until_read_by(self, *boxes: Mailbox) -> None:
        until(lambda: self.reading == list(boxes))

    def until_asleep(self, *boxes: Mailbox) -> None:
        until(lambda: list(self.readers._asleep) == list(boxes))


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture(autouse=True)
def nothing_mends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOON", LONG)
    monkeypatch.setattr(module, "A_WHILE", LONG)


def box() -> Mailbox:
    return Mailbox(b"lock:")


def news_that_next(ear: Ear, next: Mailbox) -> tuple[Callable[[], object], ...]:
    return (lambda: ear.readers.comes_next(next), next.tell)


def test_one_reads_and_the_others_sleep(ear: Ear) -> None:
    first, second = box(), box()
    one, other = ear.two(first, second)
    ear.tells(second, other)
    ear.until_read_by(first, first)
    ear.tells(first, one)


def test_who_sleeps_reads_when_the_reader_has_its_news(ear: Ear) -> None:
    first, second = box(), box()
    one, other = ear.two(first, second)
    ear.tells(first, one)
    ear.until_read_by(first, second)
    ear.tells(second, other)


def test_who_comes_next_reads_for_all(ear: Ear) -> None:
    first, second = box(), box()
    one, other = ear.two(first, second)
    ear.says(*news_that_next(ear, second))
    # It has seen who holds the lock now, and listens again
    other.result()
    ear.until_asleep(first)
    other = ear.waiter(second)
    ear.until_read_by(first, second)
    ear.tells(first, one)
    ear.until_read_by(first, second, second)
    ear.tells(second, other)


def test_who_comes_next_may_be_back_before_the_reader_has_stepped_down(ear: Ear) -> None:
    first, second = box(), box()
    one, other = ear.two(first, second)
    back: list[Meanwhile[None]] = []

    def comes_back() -> None:
        other.result()
        back.append(ear.waiter(second))
        ear.until_asleep(second)

    ear.says(*news_that_next(ear, second), comes_back)
    ear.until_read_by(first, second)
    ear.says(second.tell, first.tell)
    one.result()
    back[0].result()


def test_another_reads_where_who_comes_next_has_left(ear: Ear) -> None:
    first, second = box(), box()
    one, other = ear.two(first, second)
    ear.says(*news_that_next(ear, second))
    other.result()
    ear.until_asleep(first)
    ear.readers.leave(second)
    ear.until_read_by(first, first)
    ear.tells(first, one)


def test_nobody_waits_for_long_for_who_comes_next(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOON", 0.01)
    first, second = box(), box()
    one, other = ear.two(first, second)
    ear.says(*news_that_next(ear, second))
    other.result()
    ear.until_read_by(first, first)
    ear.tells(first, one)


def test_who_sleeps_finds_out_by_itself_that_nobody_reads(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads leaves with news of its own, and who comes next does not come."""
    monkeypatch.setattr(module, "SOON", 0.01)
    monkeypatch.setattr(module, "A_WHILE", 0.02)
    first, second, third = box(), box(), box()
    one = ear.waiter(first)
    ear.until_read_by(first)
    other, another = ear.waiter(second), ear.waiter(third)
    until(lambda: len(ear.readers._asleep) == 2)
    ear.says(*news_that_next(ear, second), first.tell)
    one.result()
    other.result()
    ear.until_read_by(first, third)
    ear.tells(third, another)


def test_who_does_not_sleep_is_not_waited_for(ear: Ear) -> None:
    """Its mailbox may be nobody's any more."""
    first, idle = box(), box()
    one = ear.waiter(first)
    ear.until_read_by(first)
    ear.says(*news_that_next(ear, idle))
    ear.until_read_by(first, first)
    ear.says(*news_that_next(ear, first))
    one.result()
    assert not ear.readers.has_heir()


def test_who_comes_next_and_whose_time_is_over_leaves_the_reading_to_others(ear: Ear) -> None:
    first, second = box(), box()
    one, other = ear.two(first, second)
    ear.says(*news_that_next(ear, second))
    other.result()
    ear.until_asleep(first)
    ear.waiter(second, seconds=0).result()
    ear.until_read_by(first, first)
    ear.tells(first, one)
