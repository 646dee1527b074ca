"""How fast the locks are, beside the peers and beside the floor: ``make bench``."""
