"""Measures the sustained FLOP/s of one bf16 product, which is 100 % of MFU. Prints one JSON object.    matrix_peak.py DEVICE SECONDS N"""

import json
import sys
import time

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)


def main():
    device, seconds, n = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for _ in range(3):
        a @ b
    wait()
    bursts, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(20):
            a @ b
        wait()
        bursts.append(20 * 2 * n**3 / (time.perf_counter() - start))
    half = bursts[len(bursts) // 2:]
    print(json.dumps({"n": n, "sustained_flop_s": sum(half) / len(half), "first_flop_s": bursts[0], "seconds": seconds}))


if __name__ == "__main__":
    main()
