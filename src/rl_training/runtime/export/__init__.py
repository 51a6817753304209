"""Exporting trained policies, with a proof that the exported file acts alike."""
