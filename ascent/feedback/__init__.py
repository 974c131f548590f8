"""Preferences from people, judges and simulated annotators: comparisons, verdicts, agreement, win rates."""
