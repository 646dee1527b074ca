"""The Django app of the hard cases: one row a job, guarded by its status."""
