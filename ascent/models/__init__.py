"""Language models as the rest of Ascent sees them: packed tokens in, log-probs, entropy, values and scores out."""
