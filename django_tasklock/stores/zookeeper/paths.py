"""Where things are in ZooKeeper, and the order of the nodes of a lock.

::

    /PREFIX/NAME/TOKEN.0000000017      who holds the lock, or waits for it
    /PREFIX/NAME/TOKEN.2_0000000017    the same lease, in the second node that took the place of one
    /PREFIX/%clock                     written to, to learn the leader's time and the next zxid
    /PREFIX/%notes/ab/abcdef...        a note or a reservation

``NAME`` is percent-quoted. No quoted name begins with a percent sign and a small letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

from ..._values.arguments import is_name, is_token
from ..._values.tokens import TOKEN_CHARACTERS

__all__ = ["CLOCK", "NOTES", "in_order", "name_of", "next_generation", "quoted", "token_of"]

CLOCK = "%clock"
NOTES = "%notes"
UNQUOTED = ":@+,=#"
"""besides letters, digits and ``_.-~``"""
SEQUENCE = re.compile(r"((?<=[._])-[0-9]{9,10}|[0-9]{10})$")
"""what the server appends to the name of a sequential node: a number of 32 bits, which is less than
0 after an overflow, in ten characters or more"""

_END = re.compile(rf"\.(?:([0-9]{{1,9}})_)?{SEQUENCE.pattern}")


def quoted(name: str) -> str:
    """A lock's name as the name of a node."""
    if name in (".", ".."):
        return name.replace(".", "%2E")  # ZooKeeper takes no such node.
    return quote(name, safe=UNQUOTED)


def name_of(node: str) -> str | None:
    """The name of the lock of a node below the prefix; None if it is no lock of ours."""
    try:
        name = unquote(node, errors="strict")
    except ValueError:
        return None
    return name if is_name(name) and quoted(name) == node else None


def token_of(child: str) -> str | None:
    """The token in the name of a lock's child; None if somebody else made it."""
    token, end = child[:TOKEN_CHARACTERS], child[TOKEN_CHARACTERS:]
    return token if is_token(token) and _END.fullmatch(end) else None


def next_generation(child: str) -> str:
    """The name of the node that takes the place of a child of ours, and its position.

    No name comes twice: who knows an older node of the lease does not take the new one for it.
    """
    token, end = child[:TOKEN_CHARACTERS], _END.fullmatch(child[TOKEN_CHARACTERS:])
    assert end is not None
    return f"{token}.{int(end[1] or 0) + 1}_{end[2]}"


def in_order(children: Iterable[str]) -> list[str]:
    """The children of a lock, the holder first, and then its waiters.

    Other programs' children count too, such as those of kazoo's own ``Lock``. One without a
    sequence number comes first: it can only be a lock that somebody else has put there.
    """
    numbers = {child: _sequence(child) for child in children}
    known = [number for number in numbers.values() if number >= 0]
    if known and max(known) - min(known) > 2**31:
        # The server's counter has overflown: small numbers are the later ones.
        for child, number in numbers.items():
            if 0 <= number < 2**31:
                numbers[child] += 2**32
    return sorted(numbers, key=lambda child: (numbers[child], child))


def _sequence(child: str) -> int:
    found = SEQUENCE.search(child)
    return int(found[1]) % 2**32 if found else -1
