"""Pure losses: ratios, policy losses, aggregation, KL, values, entropy, preferences, rankings, supervised.

Every loss of a step is returned as (numerator, denominator, metrics); only `ascent.update` ever divides.
"""
