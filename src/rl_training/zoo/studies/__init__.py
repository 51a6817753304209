"""Reports on studies: what a search tried, what it found, and what fresh seeds say about it."""
