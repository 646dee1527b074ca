"""Which of a test's parameters `make test` takes."""

from __future__ import annotations

from typing import Any

import pytest


def by_day(first: Any, *others: Any) -> list[Any]:
    """The first one by day, and the others by `make nightly`; a tuple is one of several names."""

    def values(each: Any) -> tuple[Any, ...]:
        return each if isinstance(each, tuple) else (each,)

    return [
        pytest.param(*values(first)),
        *(pytest.param(*values(each), marks=pytest.mark.nightly) for each in others),
    ]
