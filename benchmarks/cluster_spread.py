"""``python -m benchmarks.cluster_spread``: how a million locks spread over a Redis Cluster.

A lock's script names its key, its line, the index and the fences: all must be in one slot, so they
share a hash tag. One tag for all would put every lock on one node. So there are some shards, each
with an index of its own; a lock's shard is a digest of its name, and the shard's number is the tag:
``{lock:17}:video:123``. Listing asks every shard, and merges.

The simulation counts how evenly names fall on shards, and shards on nodes, and how many locks move
when a node joins. Numbered tags fall where the hash puts them; even ones are looked for.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from binascii import crc_hqx
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from rich.console import Console

from .tables import Cell, Table, show

__all__ = ["Load", "even_tags", "load", "node_of", "shard_of", "slot_of", "tags"]

SLOTS = 16384
PATTERNS = ("video:{}", "invoice:2026-{}:eu", "user:{}:export", "import:{:08x}")


@dataclass(frozen=True)
class Load:
    """How many locks the places have. ``empty`` places have none."""

    least: int
    mean: float
    most: int
    empty: int

    @property
    def over(self) -> float:
        """The fullest place, over the mean."""
        return self.most / self.mean


def slot_of(key: str) -> int:
    """The slot of a key: of what is in its first braces, if anything is (CRC16, XMODEM)."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


def shard_of(name: str, shards: int) -> int:
    """A lock's shard: the same in every process and on every machine."""
    return zlib.crc32(name.encode()) % shards


def tags(shards: int) -> list[str]:
    """What all keys of a shard begin with, for each shard: numbered."""
    return [f"{{lock:{number}}}" for number in range(shards)]


def even_tags(shards: int) -> list[str]:
    """The same, with numbers looked for whose slots lie evenly: one in each equal run of slots."""
    found: dict[int, str] = {}
    for number in count():
        tag = f"{{lock:{number}}}"
        found.setdefault(slot_of(tag) * shards // SLOTS, tag)
        if len(found) == shards:
            return [found[shard] for shard in range(shards)]
    raise AssertionError("numbers do not end")


def moves(slot: int, nodes: int) -> bool:
    """Whether a slot goes to a node that joins ``nodes`` others, each giving its fair share."""
    place = slot * nodes % SLOTS / SLOTS
    return place >= nodes / (nodes + 1)


def node_of(slot: int, nodes: int) -> int:
    """The node of a slot, where each node has an equal run of them."""
    return slot * nodes // SLOTS


def load(places: Counter[int], size: int) -> Load:
    """Of ``size`` places, those in ``places`` have so many locks."""
    counts = [places.get(place, 0) for place in range(size)]
    return Load(min(counts), sum(counts) / size, max(counts), counts.count(0))


def names(size: int) -> Iterable[str]:
    """Names as people give them, numbered."""
    return (PATTERNS[n % len(PATTERNS)].format(n // len(PATTERNS)) for n in range(size))


def simulate(
    per_shard: Counter[int], nodes: Sequence[int], tagged: Callable[[int], list[str]]
) -> list[dict[str, Cell]]:
    """How the shards' locks fall on the nodes of clusters of some sizes."""
    rows = []
    shards, total = len(per_shard), per_shard.total()
    slots = [slot_of(tag) for tag in tagged(shards)]
    for size in nodes:
        per_node: Counter[int] = Counter()
        moved = 0
        for shard, locks in per_shard.items():
            per_node[node_of(slots[shard], size)] += locks
            moved += locks if moves(slots[shard], size) else 0
        how = "even" if tagged is even_tags else "numbered"
        row = _row(f"{size} nodes, {how} tags", load(per_node, size))
        row["moved by one node more, %"] = moved / total * 100
        rows.append(row)
    return rows


def _row(title: str, found: Load) -> dict[str, Cell]:
    return {
        "spread": title,
        "least": found.least,
        "mean": found.mean,
        "most": found.most,
        "most over mean": found.over,
        "empty": found.empty,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_spread")
    parser.add_argument("--names", type=int, default=1_000_000, help="how many locks")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 64, 256, 1024])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 6, 12])
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for shards in options.shards:
        per_shard = Counter(shard_of(name, shards) for name in names(options.names))
        rows = [_row("the shards", load(per_shard, shards))]
        for tagged in (tags, even_tags):
            rows += simulate(per_shard, options.nodes, tagged)
        title = f"{options.names:,} locks in {shards:,} shards"
        show(console, Table(f"spread-{shards}", title, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
