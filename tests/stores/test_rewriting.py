"""What a store adds to the contract of `rewrite`: ZooKeeper's nodes, and a quorum's minority."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.base import Grant
from django_tasklock.stores.zookeeper import ZooKeeperStore
from tests.conftest import UseZooKeeper
from tests.quorum import Five, quorum
from tests.steps import LONG, Meanwhile, holder, in_child, taken, waiting
from tests.stores.contract.rewriting import marked
from tests.waiting import until
from tests.zookeepers import ZooKeeper, children, client_of

NAME = "video:1"


@pytest.fixture
def store(use_zookeeper: UseZooKeeper) -> ZooKeeperStore:
    return use_zookeeper()


@pytest.fixture
def other(zookeeper_server: ZooKeeper) -> Iterator[Any]:
    """Somebody else's client of the same server."""
    with client_of(zookeeper_server.hosts) as client:
        yield client


class TestNodesOfZooKeeper:
    def node(self, store: ZooKeeperStore, other: Any) -> tuple[str, int]:
        """The name of the only node, and the session with which it ends."""
        (child,) = children(other, store.key(NAME))
        return child, other.exists(f"{store.key(NAME)}/{child}").ephemeralOwner

    def test_a_lease_without_a_process_outlives_every_session(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        token = new_token()

        def detach() -> int | None:
            granted = store.acquire(NAME, token, LONG, owner_record())
            assert isinstance(granted, Grant)
            assert store.rewrite(NAME, token, LONG, marked("handle"))
            return granted.fence

        fence = in_child(detach)
        assert self.node(store, other)[1] == 0
        assert holder(NAME).detached
        # It ends with the session of whoever adopts it, also of one who adopts it from there.
        sessions = []
        for before, task in (("handle", "a"), (None, "b")):
            grant = store.rewrite(NAME, token, LONG, owner_record(task), before)
            assert grant is not None
            assert grant.fence == fence
            sessions.append(self.node(store, other)[1])
        assert sessions[0] == sessions[1] != 0
        assert (holder(NAME).fence, holder(NAME).owner.task) == (fence, "b")
        assert locks.acquire(NAME) is None

    def test_another_process_that_takes_a_lease_over_has_it_in_its_own_session(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        lease = taken(NAME)
        _, session = self.node(store, other)
        found = in_child(
            lambda: [
                store.rewrite(NAME, lease.token, LONG, owner_record("b")) is not None,
                holder(NAME).owner.task,
            ]
        )
        assert found == [True, "b"]
        until(lambda: not children(other, store.key(NAME)) or self.node(store, other)[1] != session)

    def test_no_node_has_the_name_of_an_earlier_one(
        self, store: ZooKeeperStore, other: Any
    ) -> None:
        """Else the first process would take the node of a later one for its own, and end it."""
        lease = taken(NAME)
        seen = [self.node(store, other)[0]]
        for _ in range(3):
            assert store.rewrite(NAME, lease.token, LONG, marked("a"))
            seen.append(self.node(store, other)[0])
            assert store.rewrite(NAME, lease.token, LONG, owner_record(), "a")
            seen.append(self.node(store, other)[0])
        assert len(set(seen)) == 7

    def test_it_stays_before_those_who_wait(self, store: ZooKeeperStore) -> None:
        lease = taken(NAME)
        waiter = Meanwhile(lambda: taken(NAME, wait=LONG))
        until(lambda: waiting(NAME) == 1)
        assert store.rewrite(NAME, lease.token, LONG, marked("a"))
        assert store.rewrite(NAME, lease.token, LONG, owner_record(), "a")
        assert holder(NAME).token == lease.token
        assert waiter.is_alive()
        assert lease.release()
        following = waiter.result()
        assert (following.fence or 0) > (lease.fence or 0)

    def test_it_ends_after_its_ttl_though_no_session_does(self, store: ZooKeeperStore) -> None:
        def detach() -> bool:
            lease = taken(NAME)
            return store.rewrite(NAME, lease.token, 1.0, marked("handle")) is not None

        assert in_child(detach)
        assert taken(NAME, wait=LONG).release()


@pytest.mark.nightly
@pytest.mark.slow
class TestMinorityOfAQuorum:
    def test_what_only_a_minority_has_rewritten_is_an_outage_and_excludes(self, five: Five) -> None:
        lease = taken(NAME)
        until(lambda: five.having(NAME) == set(range(5)))
        for number in (2, 3, 4):
            five.harm("cut off", number)
        with pytest.raises(StoreUnavailable):
            quorum().rewrite(NAME, lease.token, LONG, marked("handle"))
        for number in (2, 3, 4):
            five.mend("cut off", number)
        assert locks.acquire(NAME) is None
        assert holder(NAME).token == lease.token
        assert five.having(NAME) == set(range(5))

    @pytest.mark.parametrize("fault", ["cut off", "emptied"])
    def test_with_any_two_gone_one_of_many_adopts_it(self, five: Five, fault: str) -> None:
        lease = taken(NAME)
        until(lambda: five.having(NAME) == set(range(5)))
        assert quorum().rewrite(NAME, lease.token, LONG, marked("handle"))
        for number in (0, 3):
            five.harm(fault, number)
        adopters = [
            Meanwhile(
                lambda: quorum().rewrite(
                    NAME, lease.token, LONG, owner_record(new_token()), "handle"
                )
            )
            for _ in range(5)
        ]
        grants = [adopter.result() for adopter in adopters]
        assert [grant.fence for grant in grants if grant] == [lease.fence]
        assert locks.acquire(NAME) is None
