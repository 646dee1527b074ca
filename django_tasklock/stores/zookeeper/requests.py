"""The requests of which the store's calls are made. For the worker threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ..._compat.kazoo import create_container_async
from ..._values import clock
from .link import Link
from .options import Options
from .paths import CLOCK, in_order

__all__ = ["Node", "Requests"]

PIPELINED = 500
"""requests that are sent before the answer to the first of them is waited for"""


class Node(NamedTuple):
    """A node as it was read."""

    path: str
    data: bytes
    stat: Any
    """kazoo's ``ZnodeStat``"""

    @property
    def child(self) -> str:
        """Its name below its parent."""
        return self.path.rpartition("/")[2]


class Requests:
    """What a verb of the store sends. Each method raises what kazoo raises.

    Args:
        client: connected.
        link: what the client belongs to.
        deadline: until when the verb must be done, on `clock.now`.
        options: of the store.
        again: whether the verb was cut short before, and may have done part of its work.
    """

    def __init__(
        self, client: Any, link: Link, deadline: float, options: Options, again: bool
    ) -> None:
        self.client, self.link, self.deadline, self.again = client, link, deadline, again
        # From before anything is sent: what is created may be of a later session, but a lease that
        # counts as part of an earlier one is lost, and not held for ever.
        self.session = link.session
        self.prefix = options.prefix
        self.acl = CREATOR_ALL_ACL if options.auth else OPEN_ACL_UNSAFE

    def got(self, result: Any) -> Any:
        """The answer to a request that was sent."""
        return result.get(timeout=max(0.001, self.deadline - clock.now()))

    def got_each(self, results: list[Any]) -> list[Any]:
        """The answers to several requests; None for a node that does not exist."""
        found = []
        for result in results:
            try:
                found.append(self.got(result))
            except NoNodeError:
                found.append(None)
        return found

    def assert_in_time(self, path: str) -> None:
        """For loops that go on while others change what they read."""
        if clock.now() > self.deadline:
            raise KazooTimeoutError(f"{path} was changed again and again")

    def children(self, lock: str) -> list[str]:
        """The children of a lock, the holder first; none if it does not exist.

        After all that was done before this call, by whatever client.
        """
        self.client.sync_async(lock)
        return self.children_if_any(lock) or []

    def children_if_any(self, lock: str) -> list[str] | None:
        """As `children`, of the server that is asked, which may be a moment behind.

        None: there is no such node.
        """
        try:
            return in_order(self.got(self.client.get_children_async(lock)))
        except NoNodeError:
            return None

    def node(self, path: str, watch: Any = None) -> Node | None:
        """The node; with a function that is called when it changes, if it is there."""
        try:
            return Node(path, *self.got(self.client.get_async(path, watch)))
        except NoNodeError:
            return None

    def latest(self, path: str) -> Node | None:
        """As `node`, after all that was done before this call, by whatever client."""
        self.client.sync_async(path)
        return self.node(path)

    def nodes(self, paths: list[str]) -> list[Node | None]:
        """Many nodes, a batch at a time."""
        found: list[Node | None] = []
        for start in range(0, len(paths), PIPELINED):
            batch = paths[start : start + PIPELINED]
            answers = self.got_each([self.client.get_async(path) for path in batch])
            found += [
                None if answer is None else Node(path, *answer)
                for path, answer in zip(batch, answers, strict=True)
            ]
        return found

    def children_of_each(self, parents: list[str]) -> list[list[str]]:
        """The children of many locks, a batch at a time."""
        found: list[list[str]] = []
        for start in range(0, len(parents), PIPELINED):
            batch = parents[start : start + PIPELINED]
            answers = self.got_each([self.client.get_children_async(path) for path in batch])
            found += [in_order(answer or []) for answer in answers]
        return found

    def join(
        self,
        lock: str,
        token: str,
        data: bytes,
        *,
        missing: bool = False,
        ephemeral: bool = True,
    ) -> tuple[Node, list[str]]:
        """Create a node of ours below a lock. Returns it and the lock's children after that.

        ``missing``: the lock's own node is to be created too. ``ephemeral``: the node ends with
        the session.
        """
        path = f"{lock}/{token}."
        while True:
            self.assert_in_time(lock)
            if missing:
                container = create_container_async(self.client, lock, self.acl)
            created = self.client.create_async(
                path, data, self.acl, ephemeral=ephemeral, sequence=True, include_data=True
            )
            children = self.client.get_children_async(lock)
            if missing:
                try:
                    self.got(container)
                except NoNodeError:
                    self.got(self.client.ensure_path_async(lock.rpartition("/")[0], self.acl))
                except NodeExistsError:
                    pass
            try:
                where, stat = self.got(created)
                return Node(where, data, stat), in_order(self.got(children))
            except NoNodeError:
                # The server deletes a container that is empty, at any time.
                missing = True

    def delete(self, path: str, version: int = -1) -> bool:
        """Delete a node. Returns False if it did not exist."""
        try:
            self.got(self.client.delete_async(path, version))
        except NoNodeError:
            return False
        return True

    def write_clock(self) -> Any:
        """Write to a node, to learn of the leader's time and of its transactions. Returns its stat.

        No other transaction is as late as this one.
        """
        path = f"{self.prefix}/{CLOCK}"
        while True:
            try:
                return self.got(self.client.set_async(path, b""))
            except NoNodeError:
                created = self.client.create_async(path, b"", self.acl, makepath=True)
                try:
                    self.got(created)
                except NodeExistsError:
                    pass
