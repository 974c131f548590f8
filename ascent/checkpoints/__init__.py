"""Checkpoints that are whole or not there: atomic saving, verified resuming, plain export."""
