"""Standard output and error, which may be full or closed."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Any

from django.core.management.base import OutputWrapper

__all__ = ["Stream", "stream_of"]


class Stream:
    """A text file that keeps the ``error`` of the first write that failed, and drops the rest.

    So a verb runs to its end, and to its own exit status, when its reader has gone.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        """Write the text; do nothing after a failed write."""
        self._try("write", text)

    def flush(self) -> None:
        """Flush the file; do nothing after a failed write."""
        if self._file is not None:
            self._try("flush")

    @property
    def fault(self) -> str | None:
        """The error in words; None if there was none, or if only the reader has gone."""
        if self.error is None or isinstance(self.error, ConnectionError):
            return None
        return self.error.strerror or str(self.error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def _try(self, verb: str, *text: str) -> None:
        if self.error is not None:
            return
        try:
            if self._file is None:  # Python's value when the caller has closed it
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            try:
                getattr(self._file, verb)(*text)
            except UnicodeEncodeError:
                # The terminal, or what reads this, knows fewer characters than names have.
                known = self._file.encoding
                kept = [part.encode(known, "backslashreplace").decode(known) for part in text]
                getattr(self._file, verb)(*kept)
        except OSError as error:
            self.error = error
            if self._file is not None and self._file in (sys.stdout, sys.stderr):
                # Python would write the rest of its buffer at exit, and report an error.
                with suppress(OSError):
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, self._file.fileno())
                    os.close(nowhere)


def stream_of(wrapper: OutputWrapper) -> Stream:
    """Return the `Stream` that Django's wrapper writes to; put one there if there is none."""
    django: Any = wrapper  # whose attribute the stubs do not know
    if not isinstance(django._out, Stream):
        django._out = Stream(django._out)
    stream: Stream = django._out
    return stream
