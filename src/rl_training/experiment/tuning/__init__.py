"""Studies: searches of settings, as plain records and files."""
