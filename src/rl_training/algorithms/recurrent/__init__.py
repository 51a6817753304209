"""Algorithms whose policies remember, beside those that they extend."""
