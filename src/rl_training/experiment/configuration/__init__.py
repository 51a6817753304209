"""Read, check and document configurations."""
