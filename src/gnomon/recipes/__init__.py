"""Packaged recipes: one YAML a run, whose header states the command, the hardware, the metric and the time."""
