"""Our lock beside the floor and three peers: ``make bench``."""
