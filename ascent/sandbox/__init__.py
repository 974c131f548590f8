"""Run untrusted programs: namespaces, limits, a system-call filter, and results that cannot be forged. No torch."""
