"""Text that changes in its place on a terminal, where rich is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from django.core.management.base import OutputWrapper

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["live_view"]


def live_view(
    out: OutputWrapper, *, color: bool
) -> AbstractContextManager[Callable[[str], None]] | None:
    """A block with a function that shows a text in the place of the one before.

    What does not fit on the terminal is cut, and shown in full at the end of the block. None
    where rich is not installed, or the terminal cannot move its cursor.
    """
    try:
        from rich.console import Console
    except ImportError:
        return None
    # The terminal itself: the wrapper ends every piece of a line with a new line.
    terminal: Any = out._out
    console = Console(file=terminal, force_terminal=True, no_color=not color)
    return None if console.is_dumb_terminal else _live(console)


@contextmanager
def _live(console: Console) -> Iterator[Callable[[str], None]]:
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False, screen=False) as live:
        yield lambda text: live.update(Text.from_ansi(text), refresh=True)
