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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from rich.console import Console

from example_project.servers import own_redis

from ..rounds import Spread
from ..tables import Cell, Table, show

ROOT = Path(__file__).parents[2]
WORKS = (
    "acquire + release",
    "with lock()",
    "acquire, refused",
    "extend",
    "get",
    "list of 100, names",
    "list of 100, all fields",
    "wait queue of 8 threads",
    "task",
)
PIECE_SECONDS = 0.02
"""about what one piece of work takes"""


class Side:
    """One version at work."""

    def __init__(self, tree: Path, url: str) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "BENCHMARK_REDIS_URL": url,
            "PYTHONHASHSEED": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("side.py"))],
            env=environment,
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.server = redis.Redis.from_url(url)
        self._read()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a version ended before it had answered")
        return line

    def do(self, work: str, times: int) -> tuple[float, float, float]:
        """Return the seconds that the work took, and its and its server's processor seconds."""
        assert self.process.stdin is not None
        before = self._server_seconds()
        print(work, times, file=self.process.stdin, flush=True)
        took, used = map(float, self._read().split())
        return took, used, self._server_seconds() - before

    def _server_seconds(self) -> float:
        info = self.server.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@contextmanager
def tree_of(ref: str) -> Iterator[Path]:
    """The tree of a commit, in a folder that goes away."""
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
        times = max(times * 2, int(times * PIECE_SECONDS / max(took, 1e-6)) // 8 * 8)
    ours.do(work, times)
    ratios: list[list[float]] = [[], [], []]
    for piece in range(pieces):
        sides = (other, ours) if piece % 2 else (ours, other)
        told = {side: side.do(work, times) for side in sides}
        for numbers, mine, theirs in zip(ratios, told[ours], told[other], strict=True):
            if theirs:
                numbers.append(mine / theirs)
    time, client, server = (Spread.of(numbers) if numbers else None for numbers in ratios)
    return {"work": work, "time": time, "client": client, "server": server}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("--pieces", type=int, default=600, help="how many of each work")
    parser.add_argument("--work", action="append", help="only these; may be repeated")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        trees = {"other": stack.enter_context(tree_of(options.ref)), "same": ROOT, "ours": ROOT}
        sides = {}
        for name, tree in trees.items():
            server = stack.enter_context(own_redis(needs_own=True))
            sides[name] = Side(tree, server.url)
            stack.callback(sides[name].end)
        rows = []
        for work in options.work or WORKS:
            rows.append(compare(sides["other"], sides["ours"], work, options.pieces))
            print(".", end="", file=sys.stderr, flush=True)
        same = compare(sides["same"], sides["ours"], WORKS[0], options.pieces)
        rows.append(same | {"work": f"same version, {WORKS[0]}"})
    title = f"This tree over {options.ref}: median ratio, and the middle half"
    show(Console(width=None if sys.stdout.isatty() else 120), Table("beside", title, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
