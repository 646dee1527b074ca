"""Notes and reservations: nodes that outlive the session, and the process, that made them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ..._compat.kazoo import create_container_async
from ..._values.arguments import LONGEST_TTL_SECONDS
from ..._values.tokens import chance
from ..base import LISTED_KEY_PREFIX, Reserved
from .paths import NOTES
from .requests import Node, Requests
from .server_time import ServerTime

__all__ = ["Notes"]

SWEEP_CHANCE = 1 / 16
"""how many writes of a note sweep first"""
SWEPT = 64
"""how many notes, at most, a sweep looks at. A write makes one note, and 1/16 of the writes look at
64: of the notes that are there, about a quarter are over"""

T = TypeVar("T")


class Notes:
    """The notes and reservations of one store. For the worker threads.

    Whether one is over is decided by the leader's clock, which a write tells. It is one that a
    process of this store has made not long ago, or one for that purpose.
    """

    def __init__(self, time: ServerTime) -> None:
        self._time = time

    def get(self, z: Requests, key: str) -> str | None:
        """The text; None if there is none."""
        path = _path(z, key)
        # On a server that is behind, a run that has ended would look as if it had not.
        node = z.latest(path)
        return None if node is None else self._text(z, node)

    def set(self, z: Requests, key: str, text: str, ttl: float) -> None:
        """Write a note, over whatever is there; without a text, remove it."""
        path = _path(z, key)
        if not text:
            z.delete(path)
            return
        self._swept(z, key)
        data = _data(key, text, ttl, reserved=False)
        while not self._create(z, path, data):
            z.assert_in_time(path)
            try:
                self._time.learn(z.got(z.client.set_async(path, data)).mtime)
            except NoNodeError:
                continue  # It was removed meanwhile.
            return

    def reserve(
        self, z: Requests, key: str, text: str, ttl: float, over: str, held: Callable[[], T | None]
    ) -> str | T | None:
        """Reserve the key. ``held`` returns what prevents a new reservation."""
        self._swept(z, key)
        data, path = _data(key, text, ttl, reserved=True), _path(z, key)
        while True:
            node = z.latest(path)
            there = None if node is None else self._text(z, node)
            if there == over:
                there = None
            if there not in (None, text):
                return there
            if there is None and (holder := held()) is not None:
                return holder
            if node is None:
                written = self._create(z, path, data)
            else:
                written = self._write_over(z, node, data)
            if written:
                return None
            z.assert_in_time(path)

    def unreserve(self, z: Requests, key: str, text: str) -> bool:
        """End the reservation for this text."""
        while True:
            node = z.latest(_path(z, key))
            if node is None or self._text(z, node) != text:
                # After a lost reply it was this call that has ended it.
                return node is None and z.again
            with suppress(BadVersionError):
                if z.delete(node.path, node.stat.version):
                    return True
            z.assert_in_time(node.path)

    def reservations(self, z: Requests, prefix: str, limit: int | None) -> list[Reserved]:
        """The live reservations of the queue."""
        top = f"{z.prefix}/{NOTES}"
        try:
            shelves = z.got(z.client.get_children_async(top))
        except NoNodeError:
            return []
        shelves = [f"{top}/{shelf}" for shelf in shelves]
        paths = [
            f"{shelf}/{child}"
            for shelf, children in zip(shelves, z.children_of_each(shelves), strict=True)
            for child in children
        ]
        found = []
        for node in z.nodes(paths):
            note = {} if node is None else _read(node)
            if node is not None and note.get("reserved") and self._text(z, node) is not None:
                key, left = note["key"], note["ttl"] - self._time.since(node.stat.mtime)
                if key.startswith(LISTED_KEY_PREFIX + prefix):
                    found.append(Reserved(key, note["text"], left))
        found.sort(key=lambda reserved: reserved.ttl or 0.0)
        return found[:limit]

    def _text(self, z: Requests, node: Node) -> str | None:
        note = _read(node)
        if not note:
            return None
        if not self._time.known:
            self._time.learn(z.write_clock().mtime)
        text: str = note["text"]
        return text if self._time.since(node.stat.mtime) < note["ttl"] else None

    def _write_over(self, z: Requests, node: Node, data: bytes) -> bool:
        """Returns False if the note has changed since it was read."""
        try:
            stat = z.got(z.client.set_async(node.path, data, node.stat.version))
        except (BadVersionError, NoNodeError):
            return False
        self._time.learn(stat.mtime)
        return True

    def _create(self, z: Requests, path: str, data: bytes) -> bool:
        """Returns False if there is one by now."""
        shelf = path.rpartition("/")[0]
        while True:
            try:
                stat = z.got(z.client.create_async(path, data, z.acl, include_data=True))[1]
            except NodeExistsError:
                return False
            except NoNodeError:
                # The server deletes shelves that are empty.
                z.assert_in_time(path)
                z.got(z.client.ensure_path_async(shelf.rpartition("/")[0], z.acl))
                with suppress(NodeExistsError):
                    z.got(create_container_async(z.client, shelf, z.acl))
            else:
                self._time.learn(stat.mtime)
                return True

    def _swept(self, z: Requests, key: str) -> None:
        """Now and then, delete some notes that are over."""
        if chance.random() >= SWEEP_CHANCE:
            return
        shelf = _path(z, key).rpartition("/")[0]
        try:
            children = z.got(z.client.get_children_async(shelf))
        except NoNodeError:
            return
        for child in chance.sample(children, min(SWEPT, len(children))):
            node = z.node(f"{shelf}/{child}")
            if node is not None and self._text(z, node) is None:
                with suppress(BadVersionError):
                    z.delete(node.path, node.stat.version)


def _path(z: Requests, key: str) -> str:
    digest = sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40]
    return f"{z.prefix}/{NOTES}/{digest[:2]}/{digest}"


def _data(key: str, text: str, ttl: float, *, reserved: bool) -> bytes:
    note = {"key": key, "text": text, "ttl": ttl, "reserved": reserved}
    return json.dumps(note, separators=(",", ":")).encode("ascii")


def _read(node: Node) -> dict[str, Any]:
    """The note; an empty dict if it is not one of ours."""
    try:
        note = json.loads(node.data)
    except (ValueError, RecursionError):
        return {}
    if (
        type(note) is not dict
        or type(note.get("text")) is not str
        or type(note.get("key")) is not str
        or type(note.get("ttl")) not in (int, float)
        or not 0 < note["ttl"] <= LONGEST_TTL_SECONDS
    ):
        return {}
    return note
