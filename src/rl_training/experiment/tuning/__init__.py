"""Search spaces: which settings a search may change, and to which values."""
