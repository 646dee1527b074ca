from __future__ import annotations

import pytest

from tests.chaos_tasks.written_history import WrittenHistory


@pytest.fixture
def written() -> WrittenHistory:
    """A history to be written by hand."""
    return WrittenHistory()
