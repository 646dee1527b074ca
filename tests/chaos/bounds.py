"""The numbers that players, conductor and checker agree on; in seconds."""

from __future__ import annotations

NAMES = ("seat:1", "seat:2", "seat:3", "seat:4", "seat:5")
KEPT = NAMES[-1]
"""which some hold for long"""
PROCESSES = 3
THREADS = 4

SOCKET_TIMEOUT_SECONDS = 1.0
"""of a player's connections, to connect and to read"""
LONGEST_TTL_SECONDS = 6.0
LONGEST_WAIT_SECONDS = 12.0
"""of those waits that are not for ever"""

AFTER_OUTAGE_SECONDS = 4.0
AFTER_CUT_SECONDS = 2.0
AFTER_MOMENT_SECONDS = 1.0
"""after an outage, a cut, and a stop or an interruption: until a call is under way again as if
nothing had been (its reply times out, it connects anew, subscribes, and asks again)"""
LATE_SECONDS = 5.0
"""beyond its own deadline, in which a call has to return; machines that run tests are busy"""
IDLE_SECONDS = 3.0
"""for which a lock may be free though somebody waits: one whose owner cannot subscribe asks every
second"""
OUTSIDE_SECONDS = 5.0
"""for which a waiter may be missing in the queue; a process that has just begun imports first"""
CONNECTIONS = 8
"""of a process at rest that the server may still have, at most: the renewal's, the subscriber's,
and those that are kept at hand"""
DEAD_SECONDS = 1.0
"""in which the server learns that a process is dead, from its connections"""
LEFT_SECONDS = 1.0
"""in which what an interrupted call may have taken has to be given back"""
HICCUP_SECONDS = 0.5
"""by which the conductor's own clockwork may be late, before the machine is held to be at fault"""
