"""Pure helpers on packed tokens: segments, groups, masked statistics, scans, log-probabilities, exact divergences."""
