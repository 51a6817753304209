"""What single families of environments need."""
