"""Run programs nobody trusts: namespaces, limits, a system-call filter, and answers that cannot be forged. No torch."""
