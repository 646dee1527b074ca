"""``python -m example_project.demo``: the whole job, on real input, counted.

* __main__   a place of its own (directory, Redis), and leaving nothing behind
* clips      makes the videos
* story      workers, people who click too often, and somebody who kills processes
* evidence   counts what happened, and says what is wrong
* screen     prints it
"""
