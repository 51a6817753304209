"""Networks of the planning algorithms."""
