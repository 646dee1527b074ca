"""``python -m benchmarks.beside REF``: this tree beside another commit, in turn, in one run.

Each version has a process and a Redis of its own. They do the same short piece of work by turns
(A B, B A, ...), each piece of one is divided by the piece of the other beside it, and the median of
these ratios is printed: of the time, of the client's processor time, and of the server's. The row
``same version`` compares this tree with itself: what differs from 1 there is the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from example_project.servers import own_redis

from ..rounds import Spread
from ..tables import Cell, Table

ROOT = Path(__file__).parents[2]
PIECE_SECONDS = 0.02
"""about what one piece of work takes"""


class Side:
    """One version at work."""

    def __init__(self, tree: Path, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("side.py"))],
            env=os.environ | {"PYTHONPATH": str(tree), "BENCHMARK_REDIS_URL": url},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._server = redis.Redis.from_url(url)
        self.works = self._read().split(",")

    def do(self, work: str, times: int) -> tuple[float, ...]:
        """Seconds: by the clock, and of processor time in the client and in Redis."""
        assert self._process.stdin is not None
        before = self._server_seconds()
        self._process.stdin.write(f"{work} {times}\n")
        self._process.stdin.flush()
        return *map(float, self._read().split()), self._server_seconds() - before

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a version ended before it had answered")
        return line.strip()

    def _server_seconds(self) -> float:
        cpu = self._server.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


@contextmanager
def tree_of(ref: str) -> Iterator[Path]:
    """The package of a commit, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        # The clone may be another user's.
        archive = ["git", "-c", "safe.directory=*", "archive", ref, "django_tasklock"]
        packed = subprocess.run(archive, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Path(folder)


def compare(other: Side, ours: Side, work: str, pieces: int) -> dict[str, Cell]:
    """The row of one work: ours over the other."""
    times = 8
    while (took := other.do(work, times)[0]) < PIECE_SECONDS:
        times = max(times * 2, int(times * PIECE_SECONDS / took) // 8 * 8)
    ours.do(work, times)
    ratios: list[list[float]] = [[], [], []]
    for piece in range(pieces):
        told = {side: side.do(work, times) for side in ((other, ours), (ours, other))[piece % 2]}
        for numbers, mine, theirs in zip(ratios, told[ours], told[other], strict=True):
            if theirs:
                numbers.append(mine / theirs)
    time, client, server = map(Spread.of, ratios)
    return {"work": work, "time": time, "client's CPU": client, "server's CPU": server}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("--pieces", type=int, default=300, help="how many of each work")
    parser.add_argument("--work", action="append", help="only these; may be repeated")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        trees = {"other": stack.enter_context(tree_of(options.ref)), "same": ROOT, "ours": ROOT}
        sides = {}
        for name, tree in trees.items():
            server = stack.enter_context(own_redis(needs_own=True))
            sides[name] = Side(tree, server.url)
            stack.callback(sides[name].end)
        rows = []
        for work in options.work or sides["ours"].works:
            rows.append(compare(sides["other"], sides["ours"], work, options.pieces))
            print(".", end="", file=sys.stderr, flush=True)
        same = compare(sides["same"], sides["ours"], "pair", options.pieces)
        rows.append(same | {"work": "same version, pair"})
    note = f"Median ratios of {options.pieces} pieces, and the middle half; load {load:.2f}."
    print(Table(f"This tree over {options.ref}", note, rows).markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
