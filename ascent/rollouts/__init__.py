"""Rollouts as a source of training batches, in the order of a step.

generate, multi_turn   prompts -> rollouts
score                  rollouts -> rewards
batch, metrics         rollouts -> packed batch and metrics
collector              all of the above for one step, with dynamic sampling
experience             packed batch -> log-probs, values, advantages
microbatches           updates, minibatches, micro-batches
source                 all of it behind `protocols.Source`; pairs and nash_md are variants
evaluate               greedy completions of held-out prompts
"""
