"""Runs on a cluster: Ray places ranks and samplers, watches them, and replaces samplers."""
