"""Text that anybody may have written, as it is safe to show; and the logger that shows it."""

from __future__ import annotations

import logging

# Where all log lines go.
logger = logging.getLogger("django_tasklock")


def printable(value: object) -> str:
    """Return ``value`` as text with every control or invisible character escaped.

    Names, owners and keys may have been written by somebody else: as they are, they could
    move a terminal's cursor, forge a second log line or turn the direction of the text.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
