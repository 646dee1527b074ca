"""A cache whose keys depend on the tenant of the thread, as with django-tenants."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

MAKE_DIGEST = f"{__name__}.make_digest"
MAKE_KEY = f"{__name__}.make_key"
MAKE_NEW_KEY = f"{__name__}.make_new_key"
MAKE_KEY_OF_TENANT = f"{__name__}.make_key_of_tenant"

_thread = threading.local()
_calls = count()


def current() -> str:
    """The tenant of this thread."""
    return getattr(_thread, "name", "public")


@contextmanager
def tenant(name: str) -> Iterator[None]:
    """Make ``name`` the tenant of this thread for a block."""
    before = current()
    _thread.name = name
    try:
        yield
    finally:
        _thread.name = before


def make_key(key: str, key_prefix: str, version: int) -> str:
    """A KEY_FUNCTION that looks at the thread."""
    return f"{current()}:{key_prefix}:{version}:{key}"


def make_digest(key: str, key_prefix: str, version: int) -> str:
    """A KEY_FUNCTION whose keys show neither the tenant nor the name."""
    return hashlib.sha256(make_key(key, key_prefix, version).encode()).hexdigest()


def make_new_key(key: str, key_prefix: str, version: int) -> str:
    """A KEY_FUNCTION that makes no key twice."""
    return f"{next(_calls)}:{make_key(key, key_prefix, version)}"


def make_key_of_tenant(key: str, key_prefix: str, version: int) -> str:
    """A KEY_FUNCTION that raises where no tenant is current."""
    return f"{_thread.name}:{key_prefix}:{version}:{key}"
