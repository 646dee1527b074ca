"""A run of `tests.contenders` by a test, and what its ledger must say whatever the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.contenders import TTL_SECONDS
from tests.crowd import run_crowd

__all__ = ["Storm", "storm"]


@dataclass(frozen=True)
class Storm:
    """What happened.

    ``rounds``: how often a holder entered and left. ``killed``: the pids. ``cut_short``: how many
    holders were killed at work.
    """

    rounds: int
    killed: set[str]
    cut_short: int


def storm(
    folder: Path,
    processes: int,
    rounds: int,
    kills: int,
    variables: Mapping[str, str] | None = None,
    *,
    longest_pause: float = TTL_SECONDS / 4,
) -> Storm:
    """Let processes contend for one lock of this test's store while some are killed at random.

    Asserts that no two holders overlapped, that fences grew where the store has any, and that the
    lock of a dead process was taken over: for no longer than ``longest_pause`` seconds was the lock
    held by nobody at work. ``variables`` are added to the environment of the processes.
    """
    ledger = run_crowd("tests.contenders", folder, processes, rounds, kills, variables=variables)
    deeds = [(deed, fence, pid) for deed, fence, pid, *_ in ledger if deed != "K"]
    killed = {pid for deed, pid, *_ in ledger if deed == "K"}
    left = sum(deed == "L" for deed, _, _ in deeds)
    assert left >= processes * rounds

    cut_short = 0
    for (deed, fence, pid), (next_deed, next_fence, next_pid) in pairwise(deeds):
        if (deed, next_deed) == ("E", "L"):
            assert (fence, pid) == (next_fence, next_pid), "two at once"
        else:
            assert next_deed == "E", "somebody left who had not entered"
            if next_fence != "None":
                assert int(next_fence) > int(fence), "a fence that did not grow"
            if deed == "E":
                assert pid in killed, "two at once"
                cut_short += 1
    print(f"{left} rounds, {len(killed)} kills, {cut_short} of them of holders at work")

    moments = [float(line[-1]) for line in ledger]
    longest = max(later - earlier for earlier, later in pairwise(moments))
    print(f"longest pause {longest:.3f} s, of leases of {TTL_SECONDS} s")
    assert longest < longest_pause, "the lock of a dead process was not taken over"
    return Storm(left, killed, cut_short)
