"""Processes that have all columns of the workload "stores", and do with them what they are told."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from .bench import set_up_site
from .turns import Turn, take_turns

__all__ = ["Contender", "contenders"]


class Contender:
    """The starting process's end of one."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Have something done, and return the answer. Raises what that raised, as its text."""
        self.tell(verb, *arguments)
        return self.answer()

    def tell(self, verb: str, *arguments: Any) -> None:
        self._pipe.send((verb, *arguments))

    def answer(self) -> Any:
        error, answer = self._pipe.recv()
        if error is not None:
            raise RuntimeError(error)
        return answer


@contextmanager
def contenders(count: int, aliases: Mapping[str, str]) -> Iterator[list[Contender]]:
    """Start so many. ``aliases`` are the stores' aliases, by the titles of their entries."""
    context = multiprocessing.get_context("spawn")
    found, children = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            child = context.Process(target=_child, args=(dict(aliases), theirs), daemon=True)
            child.start()
            theirs.close()  # So that we hear of its end.
            children.append(child)
            found.append(Contender(ours))
        for contender in found:
            contender.answer()
        yield found
    finally:
        for contender in found:
            contender._pipe.close()
        for child in children:
            child.join(10)
            child.kill()


def _child(aliases: Mapping[str, str], pipe: Any) -> None:
    set_up_site()
    from .store_columns import ENTRIES, columns_of

    columns: dict[str, Any] = {}
    for entry in ENTRIES:
        if entry.title in aliases:
            columns.update(columns_of(entry, aliases[entry.title]))
    work = _Work(columns)
    pipe.send((None, "ready"))
    while True:
        try:
            verb, *arguments = pipe.recv()
        except EOFError:
            return
        answer: Any = None
        wrong: str | None = None
        try:
            answer = getattr(work, verb)(*arguments)
        except Exception as error:
            wrong = f"{verb} {arguments}: {type(error).__name__}: {error}"
        pipe.send((wrong, answer))


class _Work:
    """What a contender can do."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self._held: Any = None

    def titles(self) -> list[str]:
        return list(self._columns)

    def take(self, title: str, name: str) -> bool:
        """Whether the lock was granted."""
        held = self._columns[title].acquire(name)
        self._held = self._held if held is None else held
        return held is not None

    def give_back(self, title: str) -> None:
        self._columns[title].release(self._held)

    def pairs(self, title: str, number: int) -> tuple[float, float]:
        """Seconds that one pair took, and of them those on the processor, in this process."""
        column, name = self._columns[title], f"bench:{os.getpid()}"
        start, used = time.perf_counter(), time.thread_time()
        for _ in range(number):
            held = column.acquire(name)
            assert held is not None
            column.release(held)
        took, used = time.perf_counter() - start, time.thread_time() - used
        return took / number, used / number

    def turns(self, title: str, name: str, threads: int, until: float) -> Sequence[Turn]:
        """Contend for a lock until a moment of the monotonic clock, in so many threads."""
        one = partial(take_turns, self._columns[title], name, lambda: time.monotonic() >= until)
        if threads == 1:  # The drivers' and Django's connections are this thread's.
            return one()
        with ThreadPoolExecutor(threads) as pool:
            crew = [pool.submit(one) for _ in range(threads)]
            return [turn for each in crew for turn in each.result()]
