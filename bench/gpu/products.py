"""Times bf16 products: a square one, sustained (100 % of MFU), and the twelve of a block. Prints one JSON object.

    products.py DEVICE SECONDS RUNS N TOKENS OUTxIN…      seconds: of the square product and of all others together

For each matrix OUTxIN: forward, gradient of the input, gradient of the weight. PyTorch takes the library's first choice.
"""

import json
import sys
import time

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)


def rates(multiply, flops, seconds, wait):
    """FLOP/s of bursts of 20 products, for so long."""
    multiply()
    wait()
    bursts, begin = [], time.perf_counter()
    while not bursts or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(20):
            multiply()
        wait()
        bursts.append(20 * flops / (time.perf_counter() - start))
    return bursts


def main():
    device, seconds, runs, n, tokens = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:6])
    matrices = [tuple(map(int, word.split("x"))) for word in sys.argv[6:]]
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    random = lambda *shape: torch.randn(*shape, device=device, dtype=torch.bfloat16)  # noqa: E731
    a, b = random(n, n), random(n, n)
    bursts = rates(lambda: a @ b, 2 * n**3, seconds, wait)
    half = bursts[len(bursts) // 2:]
    told = {"torch": torch.__version__, "n": n, "sustained_flop_s": sum(half) / len(half), "first_flop_s": bursts[0], "products": []}
    for out, inner in matrices:
        weight, x, dy = random(out, inner), random(tokens, inner), random(tokens, out)
        for kind, multiply in {"forward": lambda: x @ weight.T, "input": lambda: dy @ weight, "weight": lambda: dy.T @ x}.items():
            flop_s = []
            for _ in range(runs):
                bursts = rates(multiply, 2 * tokens * out * inner, seconds / (3 * runs * len(matrices)), wait)
                flop_s.append(sum(bursts) / len(bursts))
            told["products"].append({"matrix": f"{out}x{inner}", "kind": kind, "flop_s": flop_s})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
