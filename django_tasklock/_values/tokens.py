"""The token of a lease: random proof that only its holder has."""

from __future__ import annotations

import base64
import os

__all__ = ["TOKEN_CHARACTERS", "new_token"]

TOKEN_CHARACTERS = 22
"""characters; 16 random bytes in URL-safe base64 without padding"""


def new_token() -> str:
    """Return the random proof of one lease: 128 bits, `TOKEN_CHARACTERS` ASCII characters."""
    return base64.urlsafe_b64encode(os.urandom(16))[:TOKEN_CHARACTERS].decode("ascii")
