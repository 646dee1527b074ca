"""``python -m benchmarks``: run the workloads, print the tables, write JSON and plots."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from .bench import Bench, open_bench
from .plots import draw
from .tables import Table, as_json, as_markdown, show, with_section
from .workloads import NAMES, workload

PACKAGES = (
    "django", "redis", "hiredis", "django-redis", "celery", "python-redis-lock", "pottery",
    "redlock-py", "sherlock", "django-cache-lock", "celery-once", "celery-singleton",
    "celery-heimdall", "django-pglock", "psycopg", "pymysql",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workload", action="append", choices=NAMES, metavar="NAME",
                        help=f"only this one; may be repeated ({', '.join(NAMES)})")  # fmt: skip
    parser.add_argument("--quick", action="store_true",
                        help="so little of everything that the times mean nothing")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all numbers there")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the plots there")
    parser.add_argument("--page", type=Path, metavar="PATH",
                        help="write the tables there, as Markdown")  # fmt: skip
    parser.add_argument("--add", action="store_true",
                        help="add them to that page, as a section of this run alone")  # fmt: skip
    options = parser.parse_args(arguments)
    old_page = options.page.read_text() if options.page and options.add else None
    console = Console(width=None if sys.stdout.isatty() else 160)
    tables: list[Table] = []
    with open_bench(quick=options.quick) as bench:
        about = _about(bench)
        for name in options.workload or NAMES:
            bench.redis.flushall()
            found = workload(name)(bench)
            tables += found
            for table in found:
                show(console, table)
                if options.plots:
                    draw(table, options.plots)
            if options.json:  # After each: what was measured is kept, whatever comes.
                options.json.write_text(json.dumps(as_json(tables, about), indent=1) + "\n")
            if old_page is not None:
                names = options.workload or NAMES
                options.page.write_text(with_section(old_page, tables, about, names))
            elif options.page:
                options.page.write_text(as_markdown(tables, about))
        for text in bench.said:
            console.print(text, markup=False)
    return 0


def _about(bench: Bench) -> dict[str, Any]:
    """What the numbers depend on."""
    server = bench.redis.info("server")
    return {
        "when": datetime.now(tz=timezone.utc).isoformat(timespec="seconds"),
        "quick": bench.quick,
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "redis": server["redis_version"],
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
