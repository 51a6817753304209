"""Execution of the seeds of a sweep: one after another, in processes, or on a Ray cluster."""
