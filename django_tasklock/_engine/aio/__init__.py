"""Locks for code on an event loop: no call blocks the loop, and no thread waits."""
