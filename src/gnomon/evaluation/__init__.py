"""Metrics with their units, and the floors to compare them with."""
