"""The conductor: starts everything, disturbs it, and ends everything."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from random import Random

from tests.chaos.bounds import PROCESSES
from tests.chaos.history import CONDUCTOR, History, now
from tests.chaos.pair import Pair
from tests.proxy import CutProxy

__all__ = ["run"]

QUIET_SECONDS = 3.0
"""seconds at the end in which nobody is disturbed, at most a quarter of the whole"""


def run(folder: Path, seconds: float, seed: str) -> None:
    """Play for so many seconds, and leave the history in the folder.

    Call it from the main thread of a process that has not set up Django.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack:
        pair = stack.enter_context(Pair.own(folder))
        # The last one is the conductor's own.
        proxies = [stack.enter_context(CutProxy(pair.address)) for _ in range(PROCESSES + 1)]
        url = proxies[-1].url
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
        os.environ["CHAOS_REDIS"] = url
        import django

        django.setup()
        # They ask for Django's settings.
        from tests.chaos.aftermath import write_aftermath
        from tests.chaos.faults import Faults
        from tests.chaos.observer import Observer
        from tests.chaos.troupe import Troupe

        history = History(folder, CONDUCTOR)
        until = now() + seconds
        troupe = Troupe(proxies[:-1], url, folder, seed, until, history)
        stack.callback(troupe.end)
        with Observer(history):
            faults = Faults(troupe, pair, proxies, history, Random(f"{seed}/faults"))
            faults.run(until - min(QUIET_SECONDS, seconds / 4))
            troupe.rest()
            write_aftermath(url, history)
        for player in troupe.players:
            player.dismiss(2.0)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
