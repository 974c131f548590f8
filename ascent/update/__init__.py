"""From losses to a step: micro-batches with global denominators."""
