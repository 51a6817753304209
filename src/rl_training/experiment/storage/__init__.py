"""Files of a run: durable writing, bounded reading, schemas."""
