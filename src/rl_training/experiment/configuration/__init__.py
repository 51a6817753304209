"""Reading, validation and documentation of configurations."""
