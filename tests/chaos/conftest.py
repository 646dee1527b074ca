from __future__ import annotations

import pytest

from tests.chaos.told import Told


@pytest.fixture
def told() -> Told:
    """A history to be written by hand."""
    return Told()
