"""
Signals of a lock's life, sent by the service with ``send_robust``: a receiver that raises
never stops a release. The sender is the `LockService` class.

=================  ===============================================================
signal             arguments
=================  ===============================================================
``lock_acquired``  ``lease``
``lock_contended`` ``name``, ``store``, ``holder`` (`LockInfo` or None), ``owner``
                   (the `Owner` who asked), ``waited`` (seconds)
``lock_released``  ``lease``
``lock_lost``      ``lease``, ``reason``; once for each lease
``lock_cleared``   ``name``, ``store``, ``token`` (or None), ``holder`` (`LockInfo`
                   or None), ``by`` (what cleared it, for the log, or None)
``lock_held``      ``name``, ``store``, ``holder`` (`LockInfo`), ``ttl`` (seconds): an
                   operator holds it; ``lock_acquired`` is not sent
=================  ===============================================================

``lock_lost`` may be sent from the renewal thread: its receivers must not use the ORM
connection of another thread.
"""

from django.dispatch import Signal

__all__ = [
    "lock_acquired",
    "lock_cleared",
    "lock_contended",
    "lock_held",
    "lock_lost",
    "lock_released",
]

lock_acquired = Signal()
lock_contended = Signal()
lock_released = Signal()
lock_lost = Signal()
lock_cleared = Signal()
lock_held = Signal()
