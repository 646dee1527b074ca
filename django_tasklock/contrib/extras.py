"""What is said where an optional app is in INSTALLED_APPS, and its library is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured

__all__ = ["needs_extra"]


@contextmanager
def needs_extra(app: str) -> Iterator[None]:
    """Say what to install if an import of this block fails, by `ImproperlyConfigured`.

    ``app``: the dotted path of the app; the last part is the name of the extra.
    """
    try:
        yield
    except ImportError as error:
        extra = app.rpartition(".")[2]
        raise ImproperlyConfigured(
            f"{app} is in INSTALLED_APPS and needs what is not installed: "
            f'pip install "django-tasklock[{extra}]" ({error})'
        ) from error
