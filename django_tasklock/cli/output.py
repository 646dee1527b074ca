"""Standard output and error that may be full, closed, or read by nobody any more."""

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

    A verb goes on to its end, and to its own exit status, whoever has stopped reading.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        self._try("write", text)

    def flush(self) -> None:
        if self._file is not None:
            self._try("flush")

    @property
    def fault(self) -> str | None:
        """What is wrong, in words; None if nothing is, or if the reader has only gone away."""
        if self.error is None or isinstance(self.error, ConnectionError):
            return None
        return self.error.strerror or str(self.error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def _try(self, verb: str, *text: str) -> None:
        if self.error is not None:
            return
        try:
            if self._file is None:  # as Python has it when the caller has closed it
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            getattr(self._file, verb)(*text)
        except OSError as error:
            self.error = error
            if self._file is not None and self._file in (sys.stdout, sys.stderr):
                # What is left in its buffer would be written, and complained of, at exit.
                with suppress(OSError):
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, self._file.fileno())
                    os.close(nowhere)


def stream_of(wrapper: OutputWrapper) -> Stream:
    """The stream behind Django's wrapper, which has one from now on."""
    django: Any = wrapper  # whose attribute the stubs do not know
    if not isinstance(django._out, Stream):
        django._out = Stream(django._out)
    stream: Stream = django._out
    return stream
