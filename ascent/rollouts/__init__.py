"""Reinforcement learning's source of batches: prompts, completions of the current policy, rewards, advantages.

collect   prompts -> completions
batch     completions -> packed tensors, whole or in pieces
credit    rewards -> advantages, and which completions count
source    all of it behind `protocols.Source`
evaluate  how good the policy is on prompts it is not trained on
"""
