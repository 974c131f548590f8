"""The native rollout engine: samples from the very modules that are trained.

engine     what a caller sees: add requests, step, collect completions
scheduler  which requests run, who shares whose pages, who waits
pages      the pages of the key/value pool: counted, shared, never leaked
rows       what every running row needs on the device
runner     forwards: packed prompts, then one token of every row at a time
recorded   a small model's forward on a CPU, replayed in memory that stays
host       what surrounds the forward of a step on a CPU
sampling   from logits to tokens
kernels    sampling on CUDA
"""
