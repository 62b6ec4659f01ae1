#!/bin/bash
# All checks that need one GPU, in at most 580 seconds: bench/gpu.sh [--help].
# Needs the folder that docs/internals/gpu.md describes, CUDA's libraries (those of PyTorch's wheels are found), and Python 3.
set -eu
PATH=$PATH:/usr/local/cuda/bin  # of compute-sanitizer
exec python3 -B "$(dirname "$0")/gpu/main.py" "$@"
