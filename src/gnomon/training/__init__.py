"""Recipes, runs and sweeps."""
