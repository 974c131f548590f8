"""The run folder on disk: configuration, environment, metrics, samples, curves; and where else metrics go."""
