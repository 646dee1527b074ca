"""The old module of `Owner`, kept for stores that import it from here."""

from ._values.owner import Owner

__all__ = ["Owner"]
