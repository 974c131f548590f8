"""The native rollout engine: paged-attention sampling from the modules that are trained.

engine           the interface: add requests, step, collect completions
sizing           default sizes of the batch and of the KV cache
scheduler        which requests run, which wait, which are preempted
block_manager    reference counts of the KV cache blocks
batch_state      the per-row state of the running batch on the device
runner           forwards: packed prefill, then one decode token per row
cpu_graph        captured forwards of small models on a CPU
cpu_step         sampling and bookkeeping of a decode step on a CPU
sampling         logits to tokens
sampling_triton  sampling kernels for CUDA
output_buffer    generated tokens of the running rows on the host
"""
