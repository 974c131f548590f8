"""From a plan to objects: models, samplers, rewards, environments, data, learners and sources."""
