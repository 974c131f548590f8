"""The run folder on disk, the terminal, warnings, and trackers."""
