"""A small model of the scripts and of those who call them, in which every state is visited.

A process may die at any point, and the server may notice that or not. A lease may run out. A
command, its reply or a subscription may be lost. A process may be interrupted, and its command may
arrive long after it gave up. An operator may clear a lock. The model has no clock: a lease may end
at any moment.

In every state: two processes never hold the lock at once, each within its own lease. Every record
has a ttl. A waiter that listens is not overtaken by one that joined the queue later. Fences grow.
A free lock has no sleeping waiter. A lock is not handed to a waiter that is known to be dead. A
release says True only if it ended the lease, an extension only if the lease holds the lock.

Left out: permits, several locks at once, the note that a grant may write, and a question that
arrives late at a free lock (its lease is known to nobody, and ends with its ttl).
"""
