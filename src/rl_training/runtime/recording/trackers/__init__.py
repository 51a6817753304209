"""Dashboards of other packages that follow a run: Weights & Biases, MLflow, trackio."""
