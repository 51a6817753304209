"""Makes datasets: records the episodes of a policy, and reads those in the replay of a run."""
