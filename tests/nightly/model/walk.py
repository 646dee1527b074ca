"""Random walks that the model and the scripts on a real server take together."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.nightly.model.real_server import Observed, RealServer
from tests.nightly.model.server import Command, Scripts, Server

__all__ = ["walk"]

PROCESSES = 4


def walk(name: str, random: Random, steps: int, redis: Any) -> None:
    """Take so many steps on a lock of its own. What differs is told with the way there."""
    real, taken = RealServer(name, PROCESSES, redis), list[str]()
    try:
        Walk(random, real, taken).take(steps)
    except AssertionError as error:
        told = "\n".join(f"{at:3}. {step}" for at, step in enumerate(taken, 1))
        raise AssertionError(f"{error}\n{told}") from error
    finally:
        real.close()


class Walk:
    def __init__(self, random: Random, real: RealServer, taken: list[str]) -> None:
        self.random, self.real, self.taken = random, real, taken
        self.server, self.scripts = Server(), Scripts()
        self.number: list[int | None] = [None] * PROCESSES
        self.last: Command | None = None

    def take(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            expected, found = Observed.of(self.server), self.real.observed()
            assert found == expected, f"the server has {found}, the model {expected}"

    def step(self) -> None:
        drawn, at = self.random.random(), self.random.randrange(PROCESSES)
        server = self.server
        if drawn < 0.12:
            quiet = at not in server.heard
            self.taken.append(f"{at} {'listens' if quiet else 'is not heard any more'}")
            (self.real.listen if quiet else self.real.hush)(at)
            self.server = server._replace(heard=server.heard ^ {at})
        elif drawn < 0.2 and server.held is not None:
            self.taken.append("the lease runs out")
            self.real.expire()
            self.server = self.scripts.expire(server)
        else:
            self.send(self.command(at))

    def command(self, at: int) -> Command:
        """Any command that a process may send; often a sensible one, or the last one again."""
        random, held = self.random, self.server.held
        if self.last is not None and random.random() < 0.1:
            return self.last
        verb = random.choice(("ask", "ask", "ask", "plain", "release", "extend", "clear", "leave"))
        if verb == "ask":
            return Command("acquire", at, True, random.choice((None, self.number[at])))
        if verb == "plain":
            return Command("acquire", at)
        if verb == "leave":
            return Command("leave", at)
        if verb == "clear":
            return Command("clear", random.choice((None, at, held)))
        return Command(verb, random.choice((at, at if held is None else held)))

    def send(self, command: Command) -> None:
        self.taken.append(f"{command}")
        self.last, fence = command, self.real.fence()
        before = self.server.fence
        self.server, reply, messages = self.scripts.run(self.server, command)
        said = self.real.run(command)
        expected = reply._replace(fence=0, number=None)
        assert said == expected, f"the script says {said}, the model {expected}"
        if command.joins and not reply.done:
            self.number[command.token or 0] = reply.number
        grew = self.real.fence() - fence
        assert (grew > 0) == (self.server.fence > before), f"the fence grew by {grew}"
        assert grew >= 0, "the fence went back"
        arrived = sorted(self.real.news(), key=str)
        heard = [each._replace(fence=0) for each in messages if each.to in self.server.heard]
        assert arrived == sorted(heard, key=str), f"published: {arrived}, by the model {heard}"
