"""Samplers: what turns requests into completions, behind `protocols.Sampler`."""
