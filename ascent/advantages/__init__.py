"""From rewards to advantages, pure: shape the reward, assign credit, normalize, select. Tensors in, tensors out."""
