"""Networks of the planning family."""
