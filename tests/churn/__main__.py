"""``python -m tests.churn [--minutes 10] [--processes 8] [--locks 1000]``; 1: something grew."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import redis

from example_project.die_with_parent import die_with_parent
from tests.churn.measures import Measures, grown, table
from tests.servers import own_redis
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = 10
SAMPLED = ("memory", "keys", "connections", "threads", "files", "resident")
TURNS = 100
"""of each process, before the time begins"""
WARM_UP = 0.15
"""the part of the time after which it is "the start": what is bounded has reached its bound"""


class Player:
    """One process, and what it has counted."""

    def __init__(self, number: int, threads: int, locks: int, folder: Path, url: str) -> None:
        self._counts = folder / f"{number}.json"
        command = [sys.executable, "-m", "tests.churn.player", str(number), str(threads)]
        self._process = psutil.Popen(
            die_with_parent([*command, str(locks), str(self._counts)], by=signal.SIGKILL),
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
                "CHAOS_REDIS": url,
                "CHAOS_PROCESS": f"churn-{number}",
            },
        )

    def turns(self) -> int:
        return self.counts()["turns"] if self._counts.exists() else 0

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(self._counts.read_text())
        return counts

    def sample(self) -> tuple[int, int, int]:
        """Threads, open files, resident bytes."""
        with self._process.oneshot():
            memory = self._process.memory_info().rss
            return self._process.num_threads(), self._process.num_fds(), memory

    def dismiss(self) -> None:
        """Let it end by itself; SIGKILL if it does not."""
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except psutil.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure(players: list[Player], client: Any, seconds: float) -> Measures:
    """Measure for so many seconds."""
    before, since = _total(players), time.monotonic()
    samples = []
    for _ in range(SAMPLES):
        time.sleep(seconds / SAMPLES)
        threads, files, resident = map(sum, zip(*(each.sample() for each in players), strict=True))
        memory, clients = client.info("memory")["used_memory"], client.info("clients")
        connections = clients["connected_clients"] - 1
        samples.append((memory, client.dbsize(), connections, threads, files, resident))
    took, after = time.monotonic() - since, _total(players)
    rates = {what: (after[what] - before[what]) / took for what in after}
    median = dict(zip(SAMPLED, map(statistics.median, zip(*samples, strict=True)), strict=True))
    return Measures(
        **median,
        lines=(rates["infos"] + rates["warnings"]) * 60,
        warnings=rates["warnings"] * 60,
        turns=rates["turns"],
    )


def _total(players: list[Player]) -> dict[str, int]:
    counts = [player.counts() for player in players]
    return {what: sum(each.get(what, 0) for each in counts) for what in (
        "infos", "warnings", "turns", "alive",
    )}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.churn", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=3, help="of each process")
    parser.add_argument("--locks", type=int, default=1000)
    options = parser.parse_args()
    seconds = options.minutes * 60
    window = min(20.0, seconds / 6)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tasklock-churn-")))
        server = stack.enter_context(own_redis(needs_own=True))
        client = stack.enter_context(redis.Redis.from_url(server.url))
        players = []
        for number in range(options.processes):
            players.append(Player(number, options.threads, options.locks, folder, server.url))
            stack.callback(players[-1].dismiss)
        until(lambda: all(player.turns() > TURNS for player in players), "that all play", 240)
        began, measured, times = time.monotonic(), [], []
        for part in (WARM_UP, 0.5, 1.0):
            time.sleep(max(0.0, began + part * seconds - window - time.monotonic()))
            measured.append(measure(players, client, window))
            times.append(f"after {(time.monotonic() - began) / 60:.1f} minutes")
        dead = options.processes * options.threads - _total(players)["alive"]
    print(table(measured, times))
    found = grown(measured) + ([f"{dead} threads have died"] if dead else [])
    print("\n".join(found) or "Nothing grew.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
