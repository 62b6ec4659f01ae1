#!/bin/bash
# All checks that need one GPU, in three calls of under nine and a half minutes each: bench/gpu.sh speed|size|rivals [--help].
# Needs the folder that docs/internals/gpu.md describes, CUDA's libraries (those of PyTorch's wheels are found), and Python 3.
set -eu
exec python3 -B "$(dirname "$0")/gpu/main.py" "$@"
