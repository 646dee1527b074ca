"""``python -m benchmarks``: run the workloads, print their tables, write JSON and the page."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from .bench import Bench, open_bench
from .chart import chart
from .tables import DRAWING, PAGE, SOAK, Table

WORKLOADS = ("pair", "handoff", "renewal", "listing", "task", "killed")
PACKAGES = ("django", "redis", "hiredis", "django-redis", "celery", "python-redis-lock",
            "celery-once")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--workload", action="append", choices=WORKLOADS, help="only this one; may be repeated")
    add("--quick", action="store_true", help="so little that the times mean nothing")
    add("--json", type=Path, metavar="PATH", help="write all numbers there")
    add(
        "--page",
        type=Path,
        metavar="PATH",
        help="write the tables and a drawing",
    )
    options = parser.parse_args()
    tables: list[Table] = []
    old = options.page.read_text() if options.page and options.page.exists() else ""
    soaked = ["".join(old.partition(SOAK)[1:])] if SOAK in old else []
    with open_bench(quick=options.quick) as bench:
        about = _about(bench)
        print(f"On {about}\n")
        for name in options.workload or WORKLOADS:
            bench.redis.flushall()
            tables.append(import_module(f"benchmarks.workloads.{name}").run(bench))
            print(tables[-1].markdown(), flush=True)
            # After each: what was measured is kept, whatever comes.
            if options.json:
                numbers = {"about": about, "tables": [asdict(table) for table in tables]}
                options.json.write_text(json.dumps(numbers, indent=1) + "\n")
            if options.page:
                text = [PAGE.format(about=about), *(table.markdown() for table in tables)]
                options.page.write_text("\n".join(text + soaked))
                drawing = options.page.parent / DRAWING
                drawing.parent.mkdir(exist_ok=True)
                drawing.write_text(chart(tables))
    return 0


def _about(bench: Bench) -> str:
    """What the numbers depend on."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{datetime.now(tz=timezone.utc):%Y-%m-%d}{', quick' if bench.quick else ''}: "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.2f} at the start, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"Redis {bench.redis.info('server')['redis_version']}. With {packages}."
    )


if __name__ == "__main__":
    sys.exit(main())
