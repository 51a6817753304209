"""Where samplers are, and how the run reaches them."""
