"""A thread of a run that looks at the jobs until it is stopped."""

from __future__ import annotations

import threading

from django.db import connection

__all__ = ["Background"]


class Background(threading.Thread):
    """Does `work`, which ends soon after `over` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error
        finally:
            connection.close()

    def work(self) -> None:
        """What the thread does."""
        raise NotImplementedError

    def stop(self) -> None:
        """Have it do nothing more, and wait for it."""
        self.over.set()
        self.join(120)
