"""What is random: the token of a lease, proof that only its holder has, and pauses."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from random import SystemRandom
from secrets import token_urlsafe

# characters; 16 random bytes in URL-safe base64 without padding
TOKEN_CHARACTERS = 22

# For pauses that differ, and for work now and then. The generator of the module `random` belongs to
# the application, which may seed it; and children of a fork would all draw the same from it.
chance = SystemRandom()


# Returns the random proof of one lease: 128 bits, as `TOKEN_CHARACTERS` ASCII characters.
new_token: Callable[[], str] = partial(token_urlsafe, 16)


def token_of(text: str) -> str:
    """Return what identifies a text, in the form of a token."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return urlsafe_b64encode(digest)[:TOKEN_CHARACTERS].decode("ascii")


def token_from(token: str, number: int) -> str:
    """Return the token of another lease, which every process can make that knows this one."""
    return token_of(f"{token} {number}")
