"""The command `ascent`, one file for each verb. Help must not wait for torch: verbs import what they need."""
