"""Processes with the site set up, which do what they are told: contenders, holders, waiters."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from .bench import set_up_site

__all__ = ["Member", "ask", "crew", "together"]

Member: TypeAlias = "Connection[Any, Any]"
"""the starting process's end of one: it takes a function of a module, with its arguments"""


@contextmanager
def crew(size: int) -> Iterator[list[Member]]:
    """Start so many, and end them after the block."""
    context = multiprocessing.get_context("spawn")
    members, processes = [], []
    try:
        for _ in range(size):
            ours, theirs = context.Pipe()
            members.append(ours)
            processes.append(context.Process(target=_work, args=(theirs,), daemon=True))
            processes[-1].start()
            theirs.close()  # So that we hear of its end, as `EOFError`.
        together(members, set_up_site)
        yield members
    finally:
        for member in members:
            member.close()
        for process in processes:
            process.join(10)
            process.kill()


def ask(member: Member, do: Callable[..., Any], *arguments: Any) -> Any:
    """Have it call a function; what that returns."""
    return together([member], do, *arguments)[0]


def together(members: Sequence[Member], do: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Have all do the same at the same time; their answers."""
    for member in members:
        member.send((do, arguments))
    return [member.recv() for member in members]


def _work(pipe: Member) -> None:
    # What goes wrong is printed with its traceback, and ends the process.
    try:
        while True:
            do, arguments = pipe.recv()
            pipe.send(do(*arguments))
    except EOFError:
        return
