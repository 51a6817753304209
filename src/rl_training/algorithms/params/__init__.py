"""Parameters that several algorithms share."""
