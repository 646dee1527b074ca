"""A cache in files, whose folder is gone."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from django_tasklock import StoreUnavailable, locks
from tests.conftest import UseCaches
from tests.steps import taken


def test_each_thread_says_that_it_is_an_outage(use_caches: UseCaches, tmp_path: Path) -> None:
    """A thread's first call makes a cache of its own, which looks for the folder."""
    folder = tmp_path / "mounted"
    backend = "django.core.cache.backends.filebased.FileBasedCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": str(folder / "cache")}})
    taken("video:1")
    shutil.rmtree(folder)
    folder.touch()
    with ThreadPoolExecutor(1) as another, pytest.raises(StoreUnavailable, match="Not a directory"):
        another.submit(locks.acquire, "video:2").result()
