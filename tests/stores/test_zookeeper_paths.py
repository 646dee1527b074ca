"""The nodes of `ZooKeeperStore`: their names, and their order."""

from __future__ import annotations

import pytest

from django_tasklock._values.tokens import new_token
from django_tasklock.stores.zookeeper.paths import in_order, name_of, quoted, token_of

TOKENS = [new_token() for _ in range(4)]


@pytest.mark.parametrize(
    "name",
    ["video:1", "a/b", "..", ".", "../..", "a%2Fb", "%notes", "%clock", "é锁", "n" * 200, "~"],
)
def test_every_name_is_a_node_of_its_own(name: str) -> None:
    node = quoted(name)
    assert "/" not in node
    assert node not in (".", "..", "%notes", "%clock")
    assert node.isascii()
    assert name_of(node) == name


@pytest.mark.parametrize("node", ["%notes", "%clock", "%ff", "a b", "é", "a%2fb", "%61"])
def test_other_nodes_are_no_locks(node: str) -> None:
    assert name_of(node) is None


def test_the_token_is_in_the_name() -> None:
    token = TOKENS[0]
    assert token_of(f"{token}.0000000017") == token
    assert token_of(f"{token}.-2147483648") == token
    assert token_of(f"{token}.-000000002") == token
    for end in ("", "0000000017", ".17", ".00000000017", "-0000000017", ".0000000017.", "é" * 11):
        assert token_of(token + end) is None
    for other in ("", "lock", f"{token[1:]}.0000000017"):
        assert token_of(other) is None


@pytest.mark.parametrize(
    "numbers",
    [
        ("0000000001", "0000000002", "0000000010", "0000000100"),
        ("2147483646", "2147483647", "-2147483648", "-2147483647"),
        ("-000000002", "-000000001", "0000000000", "0000000001"),
    ],
)
def test_the_first_to_come_is_the_first(numbers: tuple[str, ...]) -> None:
    """Also where the server's counter, of 32 bits with a sign, has overflown."""
    came = [f"{token}.{number}" for token, number in zip(TOKENS, numbers, strict=True)]
    assert in_order(reversed(came)) == came
    assert in_order(sorted(came)) == came


def test_what_somebody_else_has_put_there_comes_first() -> None:
    theirs = "0e1f-0000000001"
    ours = f"{TOKENS[0]}.0000000002"
    assert in_order([ours, theirs, "config"]) == ["config", theirs, ours]


@pytest.mark.parametrize("node", ["a%20b", "x" * 201, "%00", "", "a%2fb"])
def test_a_node_that_can_be_no_locks_is_no_lock_of_ours(node: str) -> None:
    assert name_of(node) is None
