"""``python -m example_project.demo``: the whole job, on real input, counted.

* __main__   a place of its own (directory, Redis), and leaving nothing behind
* run        the story: workers, uploads, clicks, kills
* clips      makes the videos
* crowd      people who click too often
* killer     ends pool children in mid-transcode
* uses       the short examples of `example_project.uses`, after the videos
* evidence   counts what happened, and says what is wrong
* screen     prints it
"""
