"""Text that is updated on a terminal, where rich is installed."""

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
    """Return a context manager with a function that replaces the text on the terminal.

    A text that does not fit is cut, and shown in full when the block ends. Returns None where rich
    is not installed, or the terminal cannot move its cursor.
    """
    try:
        from rich.console import Console
    except ImportError:
        return None
    # The terminal itself: the wrapper ends every piece of a line with a new line.
    terminal: Any = out._out
    console = Console(file=terminal, force_terminal=True, no_color=None if color else True)
    return None if console.is_dumb_terminal else _live(console)


@contextmanager
def _live(console: Console) -> Iterator[Callable[[str], None]]:
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False, screen=False) as live:
        yield lambda text: live.update(Text.from_ansi(text), refresh=True)
