"""Code of the user's own: find it, decide whether to trust it, import it."""
