"""Processes that contend for one lock in a cluster, while they and the cluster's nodes are killed,
and while the lock's slot moves from node to node."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from django_tasklock import locks
from django_tasklock.stores.cluster.buckets import BUCKET_SLOTS, bucket_of
from tests import contenders
from tests.clusters import Cluster
from tests.conftest import UseCaches
from tests.steps import taken, waiting
from tests.storm import storm
from tests.waiting import until

SLOT = BUCKET_SLOTS[bucket_of(contenders.NAME)]


@pytest.fixture
def cluster(use_caches: UseCaches) -> Iterator[Cluster]:
    """A cluster of three masters, each with a replica, on which the store "default" is."""
    with Cluster.own() as made:
        # A call follows the cluster's changes for as long as a socket may be silent: on a busy
        # machine a slot may need long to move.
        use_caches({}, {"default": made.settings(SOCKET_TIMEOUT=20.0)})
        yield made


@contextmanager
def again_and_again(
    change: Callable[[], object], seconds: float, most: int = 10_000
) -> Iterator[list[object]]:
    """Change the cluster in a thread, as long as the block lasts; what was done."""
    over = threading.Event()
    done: list[object] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not over.wait(seconds) and len(done) < most:
                done.append(change())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join(120)
        # Also where the block has failed: mostly because the change did.
        assert not thread.is_alive()
        assert not errors, "".join(traceback.format_exception(errors[0]))


def assert_nothing_is_left() -> None:
    until(lambda: waiting(contenders.NAME) == 0)
    assert taken(contenders.NAME).release()
    assert locks.count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "rounds", "kills"), [(8, 100, 30)])
def test_no_two_holders_overlap_and_every_kill_costs_nothing(
    cluster: Cluster, tmp_path: Path, processes: int, rounds: int, kills: int
) -> None:
    was = storm(tmp_path, processes, rounds, kills)
    assert len(was.killed) == kills
    assert_nothing_is_left()


@pytest.mark.slow
def test_while_the_cluster_grows_and_the_slot_moves(cluster: Cluster, tmp_path: Path) -> None:
    targets = [*cluster.masters, cluster.add_master()]

    def move() -> object:
        at = cluster.master_of(SLOT, targets[0])
        target = targets[(targets.index(at) + 1) % len(targets)]
        cluster.move_slot(SLOT, target)
        return target

    with again_and_again(move, 0.2) as moved:
        was = storm(tmp_path, 8, 100, 20)
    assert was.killed
    assert set(moved) == set(targets), "each node had it, the new one too"
    assert_nothing_is_left()


@pytest.mark.slow
def test_while_the_masters_of_the_slot_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    """On one machine a replica misses nothing that a client knows of, but for a write that the
    kernel has not got yet. The docs say what a failover may forget: if that is a release, the lock
    is held until its lease is over."""

    def kill() -> object:
        master = cluster.master_of(SLOT, next(iter(cluster.living)))
        promoted = cluster.fail_over(master)
        cluster.bring_back(master)
        until(lambda: cluster.replica_of(promoted) is master)
        return promoted

    with again_and_again(kill, 1.0, most=3) as promoted:
        storm(tmp_path, 8, 150, 0, longest_pause=1.5 * contenders.TTL_SECONDS)
        until(lambda: bool(promoted), within=60)
    assert_nothing_is_left()
