"""Trained policies: acting, evaluation and videos."""
