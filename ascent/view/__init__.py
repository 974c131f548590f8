"""Pages for a browser: watch runs, read rollouts, judge answers."""
