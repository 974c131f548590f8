"""From rewards to advantages, pure: shape the reward, assign credit, normalise, select. Tensors in, tensors out."""
