"""Special handling of single families of environments."""
