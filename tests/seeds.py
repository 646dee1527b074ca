"""The seed of what a test draws at random."""

from __future__ import annotations

import os
import secrets


def drawn_seed() -> int:
    """``SEED``, else a new one. It is printed: a test that fails says with which seed."""
    seed = int(os.environ.get("SEED") or secrets.randbelow(2**31))
    print(f"SEED={seed}")
    return seed
