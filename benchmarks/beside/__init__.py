"""This version beside an earlier one: the same work in turn, so that both see the same machine."""
