"""The Django app of the run: the rows that the tasks work on."""
