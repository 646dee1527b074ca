"""What several threads may do to a set of weak references at the same time."""

from __future__ import annotations

from django_tasklock._values.weak_set import SharedWeakSet


class Thing:
    pass


def test_one_may_be_added_while_they_are_iterated_over() -> None:
    things = [Thing(), Thing()]
    known: SharedWeakSet[Thing] = SharedWeakSet()
    known.add(things[0])
    for _ in known:
        known.add(things[1])
    assert set(known) == set(things)


def test_none_is_there_twice() -> None:
    thing = Thing()
    known: SharedWeakSet[Thing] = SharedWeakSet()
    known.add(thing)
    known.add(thing)
    assert list(known) == [thing]


def test_garbage_is_no_longer_there() -> None:
    thing, other = Thing(), Thing()
    known: SharedWeakSet[Thing] = SharedWeakSet()
    known.add(thing)
    known.add(other)
    del thing
    assert list(known) == [other]


def test_one_may_become_garbage_while_they_are_iterated_over() -> None:
    things = [Thing(), Thing(), Thing()]
    known: SharedWeakSet[Thing] = SharedWeakSet()
    for thing in things:
        known.add(thing)
    del thing
    seen = 0
    for _thing in known:
        seen += 1
        things.clear()
    del _thing
    assert seen == 1
    assert not list(known)


def test_one_can_be_taken_out() -> None:
    thing, other = Thing(), Thing()
    known: SharedWeakSet[Thing] = SharedWeakSet()
    known.add(thing)
    known.discard(other)
    known.discard(thing)
    assert not list(known)


def test_it_can_be_emptied() -> None:
    thing = Thing()
    known: SharedWeakSet[Thing] = SharedWeakSet()
    known.add(thing)
    known.clear()
    assert not list(known)
    known.add(thing)
    assert list(known) == [thing]
