# Ascent on an NVIDIA GPU, in the versions of constraints.txt. torch's wheels bring the CUDA libraries; the host has the
# driver and the NVIDIA container toolkit:
#
#     docker build -t ascent .
#     docker run --rm --gpus all --ipc=host -v "$PWD:/work" -v ascent-cache:/cache ascent train sort --run runs/sort
FROM python:3.11-slim-bookworm

# A compiler for Triton and for sampling on a CPU, bubblewrap for programs that a model wrote, git for run records.
RUN apt-get update && apt-get install --yes --no-install-recommends build-essential bubblewrap git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/ascent
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY ascent ascent/
RUN python -m pip install --no-cache-dir -c constraints.txt hatchling \
    && python -m pip install --no-cache-dir -c constraints.txt --no-build-isolation ".[qlora,math,track]"

ENV HF_HOME=/cache/huggingface XDG_CACHE_HOME=/cache TRITON_CACHE_DIR=/cache/triton PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
ENTRYPOINT ["ascent"]
CMD ["--help"]
