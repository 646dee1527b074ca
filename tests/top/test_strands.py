"""No two threads, or asyncio tasks, of a process have one recorded name at a time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.strands import name_of_task, name_of_thread


def test_a_thread_has_its_own_name() -> None:
    assert name_of_thread() == threading.current_thread().name
    assert owner_record()["thread"] == threading.current_thread().name


def test_threads_of_one_name_are_told_apart_and_keep_theirs() -> None:
    together = threading.Barrier(8)
    names: list[tuple[str, str]] = []

    def work() -> None:
        together.wait(20)
        first = name_of_thread()
        together.wait(20)
        names.append((first, name_of_thread()))
        together.wait(20)

    threads = [threading.Thread(target=work, name="worker-of-one-name") for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(first == second for first, second in names)
    assert len(set(names)) == 8
    assert all(first.startswith("worker-of-one-name") for first, _ in names)


def test_a_thread_that_is_renamed_has_its_new_name() -> None:
    said: list[str] = []

    def work() -> None:
        said.append(name_of_thread())
        threading.current_thread().name = "renamed-later"
        said.append(name_of_thread())

    thread = threading.Thread(target=work, name="named-first")
    thread.start()
    thread.join(30)
    assert said == ["named-first", "renamed-later"]


def test_asyncio_tasks_of_one_name_are_told_apart() -> None:
    async def name() -> tuple[str, str]:
        task: Any = asyncio.current_task()
        first = name_of_task(task)
        await asyncio.sleep(0)
        return first, name_of_task(task)

    async def both() -> list[tuple[str, str]]:
        return await asyncio.gather(*(asyncio.create_task(name(), name="one") for _ in range(5)))

    names = asyncio.run(both())
    assert all(first == second for first, second in names)
    assert len(set(names)) == 5
