"""What the package adds to the start of a process, in processor time."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

from ..bench import Bench
from ..rounds import interleaved
from ..tables import Cell, Table

__all__ = ["run"]

SITE = """
import time, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS={apps},
    CACHES={{"default": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://x"}}}},
)
{before}
began = time.process_time()
{measured}
print(time.process_time() - began)
"""
LOADED = "import django.core.cache, django.db.models, django_redis, django_redis.cache, redis"
"""what a site has loaded by the time it imports the package"""
DJANGO = "django.setup() of a site without the app"
APP = ["django_tasklock"]


def run(bench: Bench) -> list[Table]:
    rounds = bench.pick(1, 21)
    codes = {
        DJANGO: SITE.format(apps=[], before=LOADED, measured="django.setup()"),
        "the same, with the app": SITE.format(apps=APP, before=LOADED, measured="django.setup()"),
        "import django_tasklock": SITE.format(
            apps=[], before=LOADED, measured="import django_tasklock"
        ),
        "from django_tasklock import lock, locks, after that setup": SITE.format(
            apps=APP, before=f"{LOADED}\ndjango.setup()",
            measured="from django_tasklock import lock, locks",
        ),
        "the store on Redis, after that import": SITE.format(
            apps=APP, before=f"{LOADED}\ndjango.setup()\nfrom django_tasklock import locks",
            measured="locks.store",
        ),
        "import django.db.models, django.core.cache, for comparison": SITE.format(
            apps=[], before="", measured="import django.db.models, django.core.cache"
        ),
    }  # fmt: skip
    # As on a host where the packages are installed: compiled before.
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": f"{bench.folder}/compiled"}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)
    works = {name: partial(_seconds, code, compiled) for name, code in codes.items()}
    for work in works.values():
        work()
    measured = interleaved(works[DJANGO], works, rounds)
    rows: list[dict[str, Cell]] = [
        {"what": name, "ms": paired.seconds.times(1000)} for name, paired in measured.items()
    ]
    note = f"Processor time of new processes, {rounds} of each, with all modules compiled before"
    return [Table("importing", "Imports", rows, "ms", [note])]


def _seconds(code: str, environment: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return max(float(done.stdout), 1e-9)
