"""Several learners of one run: processes with the same weights, each with its share of environments and batches."""
