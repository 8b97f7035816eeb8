"""Prometheus metrics, and the iteration log."""
