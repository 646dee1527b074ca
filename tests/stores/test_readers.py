"""Which waiter of a process reads the connection for all of them."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from django_tasklock._values import clock
from django_tasklock.stores.redis import readers as module
from django_tasklock.stores.redis.channel import Channel
from django_tasklock.stores.redis.readers import Readers
from tests.steps import LONG, Meanwhile
from tests.waiting import until


class Script:
    """In place of reading, the reader makes the calls that a test gives it, until one is true."""

    def __init__(self) -> None:
        self.readers = Readers()
        self.reading: list[Channel] = []
        self.calls: queue.Queue[Callable[[], object]] = queue.Queue()

    def read(self, channel: Channel, deadline: float) -> None:
        self.reading.append(channel)
        while not self.calls.get(timeout=LONG)():
            pass

    def waiter(self, channel: Channel, seconds: float = LONG) -> Meanwhile[None]:
        """A waiter that listens on this channel."""
        return Meanwhile(lambda: self.readers.listen(channel, clock.now() + seconds, self.read))

    def two(self, first: Channel, second: Channel) -> tuple[Meanwhile[None], Meanwhile[None]]:
        """A waiter that reads, with the first channel, and one that sleeps, with the second."""
        one = self.waiter(first)
        self.until_read_by(first)
        other = self.waiter(second)
        self.until_asleep(second)
        return one, other

    def reader_does(self, *what: Callable[[], object]) -> None:
        """Let the reader make these calls, and stop reading after them."""

        def done() -> bool:
            for call in what:
                call()
            return True

        self.calls.put(done)

    def wakes(self, channel: Channel, waiter: Meanwhile[None]) -> None:
        """Let the reader deliver news to this waiter, which ends its waiting."""
        self.reader_does(channel.notify)
        waiter.result()

    def until_read_by(self, *channels: Channel) -> None:
        until(lambda: self.reading == list(channels))

    def until_asleep(self, *channels: Channel) -> None:
        until(lambda: list(self.readers._asleep) == list(channels))


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture(autouse=True)
def nothing_mends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READER_CHECK_SECONDS", LONG)


def channel() -> Channel:
    return Channel(b"lock:")


def test_one_reads_and_the_others_sleep(script: Script) -> None:
    first, second = channel(), channel()
    one, other = script.two(first, second)
    script.wakes(second, other)
    script.until_read_by(first, first)
    script.wakes(first, one)


def test_a_sleeping_waiter_reads_when_the_reader_has_its_news(script: Script) -> None:
    first, second = channel(), channel()
    one, other = script.two(first, second)
    script.wakes(first, one)
    script.until_read_by(first, second)
    script.wakes(second, other)


def test_a_reader_that_stopped_without_news_reads_again(script: Script) -> None:
    first, second = channel(), channel()
    one, other = script.two(first, second)
    script.reader_does(lambda: None)
    script.until_read_by(first, first)
    script.wakes(first, one)
    script.until_read_by(first, first, second)
    script.wakes(second, other)


def test_a_sleeping_waiter_notices_that_no_waiter_reads(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader was interrupted before it had woken another waiter."""
    monkeypatch.setattr(module, "READER_CHECK_SECONDS", 0.02)
    first, second = channel(), channel()
    one, other = script.two(first, second)
    monkeypatch.setattr(script.readers, "_pass_on", lambda: None)
    script.wakes(first, one)
    script.until_read_by(first, second)
    script.wakes(second, other)


def test_a_reader_that_is_interrupted_gives_its_role_back(script: Script) -> None:
    first, second = channel(), channel()
    one, other = script.two(first, second)

    def interrupted() -> None:
        raise KeyboardInterrupt

    script.reader_does(interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.result()
    script.until_read_by(first, second)
    script.wakes(second, other)
