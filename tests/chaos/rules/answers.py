"""What a call answers was true at some moment of the call, and it raises only what it should."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.acts import Look, Tenure
from tests.chaos.rules import Violation
from tests.chaos.story import Story

__all__ = [
    "cleared_but_extended", "cleared_but_released", "foreign_answers", "lost_early", "unavailable",
    "unexpected",
]  # fmt: skip

MOMENT_SECONDS = 0.002
"""seconds by which a clock that counts in milliseconds may differ"""
RENEWAL_SECONDS = 0.5
"""that a renewal may take on a busy machine. The first comes after a third of the lease, and one
that failed is made again after a third of what is left"""


def unexpected(story: Story) -> Iterator[Violation]:
    """An exception that none of the verbs may raise, and a process that ended by itself."""
    for event in story.events:
        if event.kind == "raised":
            yield Violation(
                "unexpected exception",
                f"{event.call}: {event.says['verb']} of {event.name} raised "
                f"{event.says['error']} ({event.says['where']})",
                event.at, event.at, event.name, (event.call,),
            )  # fmt: skip
        elif event.kind == "died":
            whom, status = event.says["whom"], event.says["status"]
            yield Violation(
                "died", f"the process {whom} ended by itself, with {status}", event.at, event.at,
                calls=(whom,),
            )  # fmt: skip


def unavailable(story: Story) -> Iterator[Violation]:
    """A call that says that the store did not answer, though nothing was wrong with it."""
    for event in story.events:
        if event.kind == "unavailable":
            story.checked["unavailable"] += 1
            if not story.disturbances.unreachable(event.process, event.at - 0.1, event.at):
                yield Violation(
                    "unavailable without a cause",
                    f"{event.call}: {event.says['verb']} of {event.name}: "
                    f"{event.says['reason']} ({event.says['where']})",
                    event.at, event.at, event.name, (event.call,),
                )  # fmt: skip


def foreign_answers(story: Story) -> Iterator[Violation]:
    """A lock whose holder, as a look told, cannot have held it at any moment of the look."""
    by_token = {tenure.token: tenure for tenure in story.tenures.values()}
    by_name = story.by_name()
    for look in story.looks:
        for name, token in look.tokens.items():
            yield from _impossible(story, look, name, token, by_token)
        if look.verb == "list":
            continue
        if look.token is not None:
            story.checked["foreign answers"] += 1
            yield from _impossible(story, look, look.name, look.token, by_token)
        free = look.said is False if look.verb == "is_locked" else look.token is None
        if not free or look.verb == "count":
            continue
        for tenure in by_name.get(look.name, ()):
            if tenure.start >= look.asked:
                break
            if tenure.end > look.over:
                yield Violation(
                    "said to be free",
                    f"{look.call}: {look.verb} said that nobody holds {look.name}, which "
                    f"{tenure.call.id} (token {tenure.token}) held all the time",
                    look.asked, look.over, look.name, (look.call, tenure.call.id),
                )  # fmt: skip


def _impossible(
    story: Story, look: Look, name: str, token: str | None, by_token: dict[str, Tenure]
) -> Iterator[Violation]:
    tenure = by_token.get(token or "")
    if tenure is None:
        return
    if tenure.name != name:
        what = f"the token {token} of {tenure.name}"
    elif tenure.said and tenure.released is not None and tenure.released < look.asked:
        if story.disturbances.undone(tenure.released):
            return
        what = f"the lease of {tenure.call.id}, released by {tenure.released:.6f}"
    elif tenure.call.asked > look.over:
        what = f"the lease of {tenure.call.id}, asked for later, at {tenure.call.asked:.6f}"
    else:
        return
    yield Violation(
        "foreign answer",
        f"{look.call}: {look.verb} from {look.asked:.6f} to {look.over:.6f} said that {name} is "
        f"held by {what}",
        look.asked, look.over, name, (look.call, tenure.call.id),
    )  # fmt: skip


def cleared_but_released(story: Story) -> Iterator[Violation]:
    """A release that says True for a lease that an operator had cleared before."""
    for tenure in story.tenures.values():
        clear = tenure.cleared
        if clear is None or not clear.said or tenure.releasing is None:
            continue
        if story.disturbances.undone(clear.over):
            continue
        story.checked["cleared but released"] += 1
        if tenure.said and clear.over < tenure.releasing and clear.fence == tenure.fence:
            yield Violation(
                "cleared but released",
                f"{tenure.call.id} released {tenure.name} (token {tenure.token}) with True at "
                f"{tenure.releasing:.6f}, which {clear.call} had cleared at {clear.over:.6f}",
                clear.asked, tenure.releasing, tenure.name, (clear.call, tenure.call.id),
            )  # fmt: skip


def cleared_but_extended(story: Story) -> Iterator[Violation]:
    """A lease that its holder could extend, or that was renewed, after an operator had cleared
    it."""
    for tenure in story.tenures.values():
        clear = tenure.cleared
        if clear is None or not clear.said or clear.fence != tenure.fence:
            continue
        if story.disturbances.undone(clear.over):
            continue
        story.checked["cleared but extended"] += 1
        # What was asked for before the clear lasts no longer than this.
        last = clear.over + tenure.longest_ttl + MOMENT_SECONDS
        if tenure.own_end > last or (tenure.extended or 0.0) > clear.over:
            yield Violation(
                "cleared but extended",
                f"{tenure.call.id} held {tenure.name} (token {tenure.token}) until "
                f"{tenure.own_end:.6f} by its own clock, extended at {tenure.extended}, and "
                f"{clear.call} had cleared it at {clear.over:.6f}",
                clear.asked, tenure.end, tenure.name, (clear.call, tenure.call.id),
            )  # fmt: skip


def lost_early(story: Story) -> Iterator[Violation]:
    """A lease that was over before its time, though nobody cleared it.

    One that is renewed is over before its time whenever it is over, unless its process was
    disturbed for so long that no renewal could succeed in time.
    """
    for tenure in story.tenures.values():
        if tenure.said is None and tenure.lost is None:
            continue
        story.checked["lost early"] += 1
        excused = tenure.cleared is not None or tenure.forgotten
        if excused or not (tenure.lost or tenure.said is False):
            continue
        noticed = tenure.lost or tenure.released or tenure.end
        # A renewal that is interrupted, or whose reply comes late, may cost the whole ttl.
        renewed = tenure.call.renew and tenure.ttl > 1.5
        since = noticed - tenure.ttl - RENEWAL_SECONDS
        if noticed < tenure.own_end - MOMENT_SECONDS or (
            renewed
            and story.disturbances.cost(tenure.call.process, since, noticed)
            <= tenure.ttl / 2 - RENEWAL_SECONDS
        ):
            yield Violation(
                "lost early",
                f"{tenure.call.id} lost {tenure.name} (token {tenure.token}, fence "
                f"{tenure.fence}) by {noticed:.6f}; its own clock said {tenure.own_end:.6f}"
                f"{', and it was to be renewed' if renewed else ''}",
                tenure.start, noticed, tenure.name, (tenure.call.id,),
            )  # fmt: skip
