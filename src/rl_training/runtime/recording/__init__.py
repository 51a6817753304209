"""What a run counts, logs, shows and leaves on disk."""
