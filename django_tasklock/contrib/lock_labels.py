"""What the optional apps share: their setting, and the label of a lock, which is a template.

It is never a name that was filled: there may be millions of names, and each value of a label is a
time series of its own.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from .._engine.lease import Lease
from .._values.slots import base_of

__all__ = [
    "MOST_LABELS",
    "OTHER",
    "SETTING",
    "label_of",
    "label_of_lease",
    "needs_extra",
    "own_settings",
]

SETTING = "TASKLOCK_METRICS"
OTHER = "other"
"""the label of a lock whose template is not known"""
MOST_LABELS = 500
"""different templates of one process: code that makes templates of values gets no more series"""

_KEYS = frozenset({"NAMES", "TOKEN"})
_seen: set[str] = set()


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Say what to install if an import of this block fails, by `ImproperlyConfigured`."""
    try:
        yield
    except ImportError as error:
        raise ImproperlyConfigured(
            f"django_tasklock.contrib.{extra} is in INSTALLED_APPS and needs what is not "
            f'installed: pip install "django-tasklock[{extra}]" ({error})'
        ) from error


def own_settings() -> Mapping[str, Any]:
    """Return the setting TASKLOCK_METRICS, read now. Raises `ImproperlyConfigured`."""
    found = getattr(settings, SETTING, None) or {}
    if not isinstance(found, Mapping) or not _KEYS.issuperset(found):
        raise ImproperlyConfigured(f"{SETTING} is a dict with {', '.join(sorted(_KEYS))} or less")
    names, token = found.get("NAMES", ()), found.get("TOKEN")
    several = isinstance(names, Collection) and not isinstance(names, str)
    if not several or not all(isinstance(name, str) for name in names):
        raise ImproperlyConfigured(f"{SETTING}['NAMES'] is a list of names and templates")
    _patterns(tuple(names))
    if token is not None and (not isinstance(token, str) or not token):
        raise ImproperlyConfigured(f"{SETTING}['TOKEN'] is a str that is not empty")
    return found


def label_of(template: str | None, name: str, slots: int | None = None) -> str:
    """Return the label of the lock ``name``.

    ``template``: what the name was filled from. Where that is not known, the first of the setting's
    NAMES that fits the name, or else `OTHER`. ``slots``: N, if the lock is one of N permits.
    """
    if template is None:
        names = own_settings().get("NAMES", ())
        template = _fitting(tuple(names), base_of(name, slots)) if names else None
        if template is None:
            return OTHER
    if template not in _seen:
        if len(_seen) >= MOST_LABELS:
            return OTHER
        _seen.add(template)
    return template


def label_of_lease(lease: Lease) -> str:
    """Return the label of the lock that a lease holds."""
    return label_of(lease.template, lease.name, lease._record.get("slots"))


def _fitting(templates: Sequence[str], name: str) -> str | None:
    for template, pattern in _patterns(tuple(templates)):
        if pattern.fullmatch(name):
            return template
    return None


@lru_cache(maxsize=8)
def _patterns(templates: tuple[str, ...]) -> list[tuple[str, re.Pattern[str]]]:
    found = []
    for template in templates:
        try:
            pieces = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ImproperlyConfigured(f"{SETTING}['NAMES']: {template!r}: {error}") from error
        pattern = "".join(
            re.escape(literal) + ("" if field is None else ".+?") for literal, field, *_ in pieces
        )
        found.append((template, re.compile(pattern)))
    return found
