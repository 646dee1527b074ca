"""The nodes in which ZooKeeper has the locks, and the requests that change them.

::

    /PREFIX/NAME          a lock, or a note; NAME is percent-quoted
    /PREFIX/NAME/CHILD    made and deleted with it; CHILD is random, and stands in its data too
    /PREFIX/%clock        written with each change: it tells the leader's time, and the transaction

The version of a node begins at 0 again in each new node. A change that arrives late, when the next
lease's node has the same version, would hit that one. So each change of a node names its child as
well: without that one the transaction is refused. And no node is deleted that has another child.

A client cannot ask ZooKeeper for the time. But the leader stamps each node with the time of its
last change. So a lease ends ``lasts`` seconds after that stamp, and whoever finds one that looks
over writes to ``%clock`` first, and compares the two stamps. No lease ends by a client's clock.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from ..._values.arguments import LONGEST_TTL_SECONDS, is_name, is_token
from ..._values.tokens import new_token
from .. import records
from ..records import Change, Entry, is_note

# No quoted name begins so.
CLOCK = "%clock"
# In a record's text: how many seconds after the node's last change it ends, and the node's child.
LASTS, CHILD = "lasts", "child"

# A verb of kazoo's transactions, a path, and what else it takes.
Request: TypeAlias = tuple[Any, ...]
# The data of a node, and its stat; None: there is no node.
Found: TypeAlias = tuple[bytes, Any] | None


class Node(NamedTuple):
    """What was read of one name.

    Attributes:
        entry: None: there is no node, or it is over.
        version: None: there is no node.
        child: None: there is no node, or that of another program.
    """

    entry: Entry | None
    version: int | None = None
    child: str | None = None

    @property
    def is_over(self) -> bool:
        return self.entry is None and self.version is not None


def path_of(prefix: str, name: str) -> str:
    """Return the path of a lock's node, or of a note's."""
    return f"{prefix}/{_quoted(name)}"


def _quoted(name: str) -> str:
    # ZooKeeper takes no node "." or "..".
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe=":@+,=#")


def name_of(part: str) -> str | None:
    """Return the name whose node is called so below the prefix; None: there is no such name."""
    name = unquote(part)
    return name if _quoted(name) == part and (is_note(name) or is_name(name)) else None


def node_of(name: str, found: Found, moment: float) -> Node:
    """Return the node that was found, as it is at a moment by the leader's clock."""
    if found is None:
        return Node(None)
    data, stat = found
    record = dict(records.record_of(data) or {})
    lasts, child = record.pop(LASTS, None), record.pop(CHILD, None)
    is_number = type(lasts) in (int, float) and 0 < lasts <= LONGEST_TTL_SECONDS
    has_child = type(child) is str and is_token(child) and stat.numChildren
    if not record or not has_child or not (lasts is None or is_number):
        return Node(Entry(name, None, None, digest=records.digest_of(data)), stat.version)
    # The stamps are cut off to whole milliseconds: one more must have passed.
    left = None if lasts is None else min(lasts, lasts + (stat.mtime + 1 - moment) / 1000)
    if left is not None and left <= 0:
        return Node(None, stat.version, child)
    fence = None if is_note(name) else stat.czxid
    return Node(Entry(name, record, left, fence, None, stat.ctime / 1000), stat.version, child)


def plan(change: Change, node: Node, path: str) -> tuple[list[Request], Entry | None]:
    """Return what makes a change that fits, and what is there then.

    The requests are refused if the node is not as it was read. A new lease has not yet ``began``.
    """
    if change.record is None:
        return delete(path, node), None
    goal = records.after(change, node.entry, None)
    if goal is None or goal is node.entry:  # It stays as it is.
        return _check(path, node), goal
    if goal.began is not None:  # The lease that is there goes on.
        return _to("set_data", path, node, _data(goal, node.child)), goal
    child = new_token()
    made = [("create", path, _data(goal, child)), ("create", f"{path}/{child}", b"")]
    return [*delete(path, node), *made], goal


def granted(goal: Entry | None, stat: Any) -> Entry | None:
    """Return the entry as it was written; ``stat``: of the clock, written in the same step."""
    if goal is None or goal.began is not None or goal.record is None:
        return goal
    fence = None if is_note(goal.name) else stat.mzxid
    return goal._replace(fence=fence, began=stat.mtime / 1000)


def delete(path: str, node: Node) -> list[Request]:
    """Return the requests that delete a node, if there is one."""
    return [] if node.version is None else _to("delete", path, node)


def _check(path: str, node: Node) -> list[Request]:
    if node.version is None:
        # No request checks that there is no node: one is made and removed in the same step.
        return [("create", path, b""), ("delete", path, 0)]
    return _to("check", path, node)


def _to(verb: str, path: str, node: Node, *data: bytes) -> list[Request]:
    """The requests that check, write or delete a node, if it is the one that was read, as it was
    read."""
    also = "delete" if verb == "delete" else "check"
    child = [] if node.child is None else [(also, f"{path}/{node.child}", 0)]
    return [*child, (verb, path, *data, node.version)]


def _data(entry: Entry, child: str | None) -> bytes:
    ends = {} if entry.left is None else {LASTS: entry.left}
    return records.text_of_record({**(entry.record or {}), **ends, CHILD: child}).encode("ascii")
