"""The history, put together: calls, and what each lease's holder knew of it.

The kinds of events, and what they say beside the call and the lock's name:

* of a call that takes a lock: ``asked`` (verb, wait, ttl, renew), then ``granted`` (token, fence,
  end: when the lease is over by its holder's clock, or later), or ``refused``;
* of its lease: ``held`` (end), ``extending`` (ttl), ``extended`` (said), ``releasing``,
  ``released`` (said), ``lost``, ``dropped``;
* of any call: ``interrupted``, ``unavailable``, ``raised`` (verb, where, reason or error);
* of an operator's: ``looking``, ``looked`` (verb, what it said), ``clearing`` (token, fence),
  ``cleared`` (said);
* of a process: ``began``, ``rested`` (threads, files, spare);
* of the conductor: ``fault`` (fault, whom, since), ``died`` (whom, since), ``stuck`` (whom),
  ``seen`` (since, token, fence, holder, queue), ``left`` (what), ``connections`` (whom, number).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tests.chaos.acts import Call, Clear, Look, Seen, Tenure
from tests.chaos.disturbance import Disturbances
from tests.chaos.history import Event

__all__ = ["Story"]


class Story:
    """What a run's events tell."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.disturbances = Disturbances(events)
        self.calls: dict[str, Call] = {}
        self.tenures: dict[str, Tenure] = {}
        """by the call"""
        self.clears: list[Clear] = []
        self.looks: list[Look] = []
        self.seen: defaultdict[str, list[Seen]] = defaultdict(list)
        self.checked: defaultdict[str, int] = defaultdict(int)
        """how often each rule had something to judge"""
        self.end = events[-1].at if events else 0.0
        self._asking: dict[str, Event] = {}
        for event in events:
            tell = getattr(self, f"_{event.kind}", None)
            if tell is not None:
                tell(event)
        self._close()

    def by_name(self) -> dict[str, list[Tenure]]:
        """The tenures of each lock, in the order in which they began."""
        found: defaultdict[str, list[Tenure]] = defaultdict(list)
        for tenure in sorted(self.tenures.values(), key=lambda x: x.start):
            found[tenure.name].append(tenure)
        return found

    # One method a kind of event.

    def _asked(self, event: Event) -> None:
        says = event.says
        self.calls[event.call] = Call(
            event.call, event.process, event.name, event.at, says["wait"], says["ttl"],
            says["renew"],
        )  # fmt: skip

    def _over(self, event: Event) -> None:
        call = self.calls.get(event.call)
        if call is not None and call.over is None:
            call.over, call.outcome = event.at, event.kind

    def _granted(self, event: Event) -> None:
        self._over(event)
        call, says = self.calls[event.call], event.says
        call.token, call.fence = says["token"], says["fence"]
        self.tenures[event.call] = Tenure(
            call, call.token, call.fence, event.at, event.at, says["end"], call.ttl, call.asked,
            longest_ttl=call.ttl,
        )  # fmt: skip

    _refused = _over

    def _held(self, event: Event) -> None:
        tenure = self.tenures[event.call]
        tenure.end = max(tenure.end, event.at)
        tenure.own_end = event.says["end"]

    def _extending(self, event: Event) -> None:
        tenure = self.tenures[event.call]
        tenure.announced = max(tenure.announced, tenure.own_end)
        # It may reach the store and shorten the lease, though no answer comes.
        tenure.own_end = min(tenure.own_end, event.at + event.says["ttl"])
        tenure.ttl, tenure.asked = event.says["ttl"], event.at
        tenure.longest_ttl = max(tenure.longest_ttl, tenure.ttl)

    def _extended(self, event: Event) -> None:
        if event.says["said"]:
            tenure = self.tenures[event.call]
            tenure.extended = tenure.asked

    def _releasing(self, event: Event) -> None:
        self.tenures[event.call].releasing = event.at

    def _released(self, event: Event) -> None:
        tenure = self.tenures[event.call]
        tenure.released, tenure.said = event.at, event.says["said"]
        if tenure.said and tenure.releasing is not None:
            # Nothing is released that was not held when it was asked for.
            tenure.end = max(tenure.end, tenure.releasing)

    def _lost(self, event: Event) -> None:
        self.tenures[event.call].lost = event.at

    def _gone(self, event: Event) -> None:
        tenure = self.tenures.get(event.call)
        if tenure is not None and event.says.get("verb") != "extend":
            tenure.given_up = event.at
            if event.kind == "interrupted":
                tenure.cut_short = event.at

    def _dropped(self, event: Event) -> None:
        self._gone(event)

    def _failed(self, event: Event) -> None:
        self._over(event)
        self._gone(event)
        asking = self._asking.pop(event.call, None)
        if asking is not None and asking.kind == "clearing":
            self._add_clear(asking, event.at, None)

    _interrupted = _unavailable = _raised = _failed

    def _looking(self, event: Event) -> None:
        self._asking[event.call] = event

    _clearing = _looking

    def _looked(self, event: Event) -> None:
        asking, says = self._asking.pop(event.call), event.says
        self.looks.append(
            Look(
                event.call, event.process, says["verb"], asking.name, asking.at, event.at,
                says.get("token"), says.get("said"), says.get("tokens", {}),
            )
        )  # fmt: skip

    def _cleared(self, event: Event) -> None:
        self._add_clear(self._asking.pop(event.call), event.at, event.says["said"])

    def _add_clear(self, asking: Event, over: float, said: bool | None) -> None:
        token, fence = asking.says["token"], asking.says["fence"] or 0
        self.clears.append(Clear(asking.call, asking.name, token, fence, asking.at, over, said))

    def _seen(self, event: Event) -> None:
        says = event.says
        self.seen[event.name].append(
            Seen(
                event.name, says["since"], event.at, says["token"], says["fence"] or 0,
                says["holder"], says["queue"],
            )
        )  # fmt: skip

    def _close(self) -> None:
        """Say of each lease how long its holder could believe in it."""
        for asking in self._asking.values():
            if asking.kind == "clearing":
                # Killed in it.
                self._add_clear(asking, self.end, None)
        clears: defaultdict[str, list[Clear]] = defaultdict(list)
        for clear in sorted(self.clears, key=lambda x: x.asked):
            clears[clear.token].append(clear)
        for tenure in self.tenures.values():
            if tenure.said is None and tenure.lost is None and tenure.given_up is None:
                # Killed, or still at it when the run ended.
                ends = [tenure.own_end, self.disturbances.killed.get(tenure.call.process, self.end)]
                ends += [] if tenure.releasing is None else [tenure.releasing]
                tenure.end = max(tenure.end, min(ends))
            ended = [x for x in clears.get(tenure.token, ()) if x.may_have_ended(tenure)]
            if ended:
                # By design it learns of it later.
                tenure.end = min(tenure.end, ended[0].asked)
                tenure.cleared = ended[0]
            over = max(tenure.end, tenure.released or 0.0, tenure.lost or 0.0)
            for emptied in self.disturbances.emptied:
                # A grant whose reply was on its way may have been forgotten as well, or a lease
                # while its release was on the way.
                if tenure.call.asked < emptied.until and emptied.since < over:
                    tenure.end = max(min(tenure.end, emptied.since), tenure.start)
                    tenure.forgotten = True
                    break
