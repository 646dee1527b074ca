"""The clock of leases, the name of who acts, and what a signal handler may interrupt."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from django_tasklock._values.interruptions import Bell
from django_tasklock._values.owner import lives, process_words, strand_name
from tests.steps import all_of, in_child

FROZEN = """
from datetime import timedelta
from freezegun import freeze_time
from django_tasklock._values import clock
before = clock.now()
with freeze_time("2030-06-01") as frozen:
    frozen.tick(timedelta(hours=1))
    then = clock.now()
    assert 0 < then - before < 600
    while clock.now() == then:
        pass
"""
AS_ON_MACOS = "import time\nvars(time).pop('CLOCK_BOOTTIME', None)\n"


@pytest.mark.parametrize("before", ["", AS_ON_MACOS], ids=["here", "without CLOCK_BOOTTIME"])
def test_the_clock_goes_on_while_time_is_frozen(before: str) -> None:
    # Given a test of somebody's own that freezes time; I expect leases to go on
    subprocess.run([sys.executable, "-c", before + FROZEN], check=True, timeout=60)


def test_threads_and_asyncio_tasks_of_one_name_are_told_apart() -> None:
    together = threading.Barrier(8)

    def of_thread() -> str:
        threading.current_thread().name = "one"
        together.wait(20)
        return strand_name()

    async def of_task() -> str:
        return strand_name()

    async def of_tasks() -> list[str]:
        return await asyncio.gather(*(asyncio.create_task(of_task(), name="one") for _ in range(8)))

    for names in (all_of(*[of_thread] * 8), asyncio.run(of_tasks())):
        assert len({*names}) == 8
        assert all("one-" in name for name in names)


def test_a_process_is_known_by_few_words_on_its_machine() -> None:
    own = process_words()
    assert lives(own) is True
    assert lives(in_child(process_words)) is False
    for unknown in (own[:-1] + "*", own.replace(" ", ""), "a b c", "1 None AbCdEf", ""):
        assert lives(unknown) is None, unknown


def test_a_bell_wakes_who_sleeps_and_who_is_about_to() -> None:
    bell = Bell()
    assert not bell.sleep(0.01), "nobody has rung"
    bell.ring()
    bell.ring()
    assert bell.sleep(20), "it was rung before"
    assert not bell.sleep(0.01), "twice before one sleep is once"
    sleeper, ringer = all_of(lambda: bell.sleep(20), bell.ring)
    assert sleeper is True
    assert ringer is None
