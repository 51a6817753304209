"""Shared code of the planning algorithms: parameters, batches and targets, unrolled losses, models for the search."""
