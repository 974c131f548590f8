"""Several processes as one run: ranks, reductions, launching."""
