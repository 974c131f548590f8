"""Preferences from people, judges and simulated annotators: questions, verdicts, agreement, win rates. No torch."""
