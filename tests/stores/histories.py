"""
What every store has to keep, checked on what processes saw: no two hold one lock at once.

`played` has three processes take locks and permits, release them or let their leases run out, look
at them and clear them (`tests.stores.history_player`), while processes are stopped and killed.
Each writes down when it held what, by one clock. `findings` are the sentences that the history
breaks.

``HISTORY_SECONDS=60 make nightly-tests ARGS="tests/stores/test_histories.py -k zookeeper"`` does so
for one store.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

from django_tasklock.stores.base import BaseStore
from tests.agent import environment
from tests.nightly.chaos.history import Event, History, now, read
from tests.nightly.chaos.player import Player
from tests.nightly.chaos.rules import Violation, fences, said, two_holders
from tests.nightly.chaos.story import Story
from tests.stores import history_player
from tests.stores.history_player import SHORT_SECONDS
from tests.waiting import PATIENCE, until

__all__ = ["SECONDS", "counts", "findings", "played", "too_few"]

SECONDS = float(os.environ.get("HISTORY_SECONDS", 0))
"""how long a history is, instead of what the test says"""
PROCESSES = 3
FAULT_SECONDS, STOPPED_SECONDS = (0.2, 0.8), (0.05, 1.0)
MARGIN_SECONDS = min(0.5, SHORT_SECONDS[0] / 4)
"""for which a change of a lease may take on a store without ``atomic_release``: see `CacheStore`"""
LEAST = {"granted": 25, "ran out": 5, "permits": 5, "gates": 3, "looked": 25, "cleared": 1}
"""what must have happened in a history"""
ROUNDING_SECONDS = 0.5
"""before its end, in which a lease may be lost"""
Disturb = Callable[[Random], None]


def played(store: BaseStore, seconds: float, folder: Path, seed: int, *disturb: Disturb) -> Story:
    """The history of so many seconds, or of more if `too_few` things have happened by then.

    ``disturb``: what else is done to the servers, again and again.
    """
    chance, end = Random(seed), now() + seconds

    def is_over() -> bool:
        return now() > end and (not too_few(read(folder)) or now() > end + PATIENCE)

    if "memory" in type(store).__module__:
        _play_in_threads(History(folder, "threads"), str(seed), is_over)
    else:
        with contextlib.ExitStack() as stack:
            history, players = History(folder, "conductor"), list[Player]()
            for place in range(PROCESSES):
                module = history_player.__name__
                players.append(Player(place, history, environment(), module, folder, str(seed)))
                stack.callback(players[-1].end)
            harms: list[Disturb] = [partial(_harm, players, store), *disturb]
            while not is_over():
                time.sleep(chance.uniform(*FAULT_SECONDS))
                for harm in harms:
                    harm(chance)
            for player in players:
                until(player.has_begun, "that the last one has begun")
                player.process.terminate()
            for player in players:
                player.process.wait(PATIENCE)
                player.rest(now())
    return Story(read(folder))


def _play_in_threads(history: History, seed: str, is_over: Callable[[], bool]) -> None:
    over = threading.Event()
    threads = threading.Thread(target=history_player.play, args=(history, seed, over, 6))
    threads.start()
    try:
        while not is_over():
            time.sleep(FAULT_SECONDS[0])
    finally:
        over.set()
        threads.join()


def _harm(players: Sequence[Player], store: BaseStore, chance: Random) -> None:
    """Kill a process and start another one, or stop one for a moment."""
    player = chance.choice(players)
    if chance.random() < 0.3:
        player.kill()
    elif store.atomic_release:  # Others promise nothing of processes that stand still.
        player.stop_for(chance.uniform(*STOPPED_SECONDS))


def too_few(events: Sequence[Event]) -> dict[str, int]:
    """What has happened too seldom for the history to show anything."""
    counted = counts(events)
    return {what: counted[what] for what, least in LEAST.items() if counted[what] < least}


def counts(events: Sequence[Event]) -> Counter[str]:
    """How often each thing has happened."""
    counted = Counter(event.kind for event in events)
    counted["ran out"] = counted["granted"] - counted["releasing"]
    granted = [event.name for event in events if event.kind == "granted"]
    counted["permits"] = sum("#" in name for name in granted)
    counted["gates"] = granted.count(history_player.PERMITS)
    return counted


def findings(story: Story, store: BaseStore | type[BaseStore]) -> list[Violation]:
    """Everything in the history that must not be."""
    found = [*two_holders(story), *not_seen(story), *let_in(story, store)]
    if not store.atomic_release:
        late = [*late_changes(story)]
        found = [each for each in found if not any(each.calls[0].name == name and
                 since < each.at and at > each.since for name, since, at in late)]  # fmt: skip
    if store.supports_fence:
        found += fences(story)
    return [*found, *lost(story), *said(story)]


def not_seen(story: Story) -> Iterator[Violation]:
    """A look that showed a lock as free, which somebody held from before it until after it."""
    for event in story.events:
        if event.kind == "looked" and not event.says["locked"]:
            for lease in story.leases[event.name]:
                if lease.start < event.says["since"] and event.at < lease.end:
                    text = f"{lease}, at {event.at:.6f}"
                    yield Violation("not seen", text, lease.start, event.at, (lease,))


def let_in(story: Story, store: BaseStore | type[BaseStore]) -> Iterator[Violation]:
    """A permit that was granted while somebody held the lock whose permit it is: it was asked for
    and granted meanwhile, or its fence says that it was granted later than that lock."""
    kind = store if isinstance(store, type) else type(store)
    in_order = kind.__name__ in ("RedisStore", "RedisClusterStore", "MemoryStore", "ZooKeeperStore")
    for name, leases in [*story.leases.items()]:
        for gate in story.leases[name.rpartition("#")[0]]:
            for lease in leases:
                later = gate.start < lease.asked or (in_order and gate.fence < lease.fence)
                # Of a gate whose holder heard of it too late, nobody knows when it ended.
                if later and gate.start < gate.end and lease.start < gate.end:
                    text = f"{lease}, asked for at {lease.asked:.6f}, beside {gate}"
                    yield Violation("let in", text, gate.start, lease.start, (gate, lease))


def lost(story: Story) -> Iterator[Violation]:
    """A lease that was not its holder's any more when that released it, though nobody had cleared
    it, and it was not about to end."""
    cleared = {event.says["token"] for event in story.events if event.kind == "clearing"}
    for event in story.events:
        if event.kind == "released" and not event.says["said"]:
            lease = story.calls[event.call]
            if lease.token not in cleared and lease.own_end - event.at > ROUNDING_SECONDS:
                yield Violation("lost", str(lease), lease.start, event.at, (lease,))


def late_changes(story: Story) -> Iterator[tuple[str, float, float]]:
    """Lock, beginning and end of each change that took longer than a store allows for, which
    cannot compare and change in one step."""
    for event in story.events:
        since, over = event.says.get("since", 0.0), event.says.get("until", 0.0)
        if over - since > MARGIN_SECONDS:
            yield event.name, since, over
