"""The Python module beside NumPy and, where it is installed, PyTorch: bits of resumed states and of offloaded activations, errors.

    python_test.py MODULE-DIRECTORY FOLDER      with TERRACE_LIBRARY and TERRACE_PROGRAM; exit code 77: skipped
"""
import pathlib
import shutil
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: NumPy is not installed")
    sys.exit(77)
sys.path.insert(0, sys.argv[1])
import terrace  # noqa: E402

folder = pathlib.Path(sys.argv[2])
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)


def tiers(store=None):
    return terrace.Tiers(host="2MB", disk="64MiB", store=store, paths=[] if store else [folder], threads=2)


def expect_error(status, words, call):
    try:
        call()
    except terrace.Error as error:
        assert error.status == status and words in str(error), (error.status, str(error))
        return
    raise AssertionError(f"no error with {words!r}")


def train(store, begin, end, weight):
    gradient = np.empty_like(weight)
    with_store = terrace.OptimizerState(tiers(store), beta2=0.99, weight_decay=0.01)
    with_store.add("w", weight, gradient)
    assert with_store.last_commit == begin
    for _ in range(begin, end):
        gradient[:] = weight - 1
        norm = with_store.step(rate=0.01, clip=1.0)
        assert abs(norm - np.linalg.norm(gradient.astype(np.float64))) < 1e-4 * norm
    if store:
        with_store.commit(end)
    with_store.close()


def adamw(weight, steps, rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8, decay=0.01):
    w, m, v = weight.astype(np.float64), 0.0, 0.0
    for t in range(1, steps + 1):
        g = w - 1
        g = g * min(1, 1 / np.linalg.norm(g))
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        w = w * (1 - rate * decay) - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return w


begin = np.linspace(0, 1, 300_000, dtype=np.float32).reshape(600, 500)
once, twice = begin.copy(), begin.copy()
train(None, 0, 6, once)
train(folder / "store", 0, 3, twice)
twice[:] = -1  # the commit has them
train(folder / "store", 3, 6, twice)
assert np.array_equal(once, twice)
assert np.abs(once - adamw(begin, 6)).max() < 1e-6

state = terrace.OptimizerState(tiers())
expect_error("refused", "not contiguous", lambda: state.add("w", once.T, once.T))
expect_error("refused", "list", lambda: state.add("w", [1.0], [1.0]))
expect_error("refused", "one shape", lambda: state.add("w", once, once[:3].copy()))
expect_error("refused", "TERRACE_FP32", lambda: state.add("w", once.astype(np.int32), once))
expect_error("refused", "no setting betas", lambda: terrace.OptimizerState(tiers(), betas=(0.9, 0.99)))
expect_error("refused", "no size", lambda: terrace.Tiers(host="much"))

saved = terrace.SavedTensors(tiers())
arrays = [np.random.default_rng(i).standard_normal((250, 1000), dtype=np.float32) for i in range(12)]  # six times the host's budget
handles = [saved.offload(array) for array in arrays]
for array in reversed(arrays):
    assert np.array_equal(handles.pop().fetch(np.empty_like(array)), array)

model = dict(layers=2, hidden=64, heads=4, seq_len=64, vocab=300, data_format="bytes", batch_size=2, device="cpu", assumed_costs=True)
planned = terrace.plan(**model, device_memory="100MiB", host_memory="100MiB")
assert planned["fits"] and planned["step_time_s"] > 0, planned
expect_error("refused", "--layer", lambda: terrace.plan(layer=2))
print("NumPy: the bits of one life, of saved tensors, and a plan")

try:
    import torch
except ImportError:
    print("PyTorch is not installed: its part was left out")
    sys.exit(0)


def gradients(offload):
    torch.manual_seed(1)
    width = 512
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)) for _ in range(4)))
    x = torch.randn(1024, width)
    if offload:
        with terrace.offload_activations(terrace.Tiers(host="5MB", disk="256MiB", paths=[folder], threads=2)):
            loss = model(x).square().mean()
    else:
        loss = model(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


for kept, offloaded in zip(gradients(False), gradients(True)):
    assert torch.equal(kept, offloaded)

torch.manual_seed(2)
layer = torch.nn.Linear(300, 200)
beside = torch.nn.Linear(300, 200)
beside.load_state_dict(layer.state_dict())
for p in layer.parameters():
    p.grad = torch.zeros_like(p)
state = terrace.OptimizerState(tiers(), weight_decay=0.01, beta2=0.999)
for name, p in layer.named_parameters():
    state.add(name, p, p.grad)
theirs = torch.optim.AdamW(beside.parameters(), lr=1e-3, weight_decay=0.01)
for _ in range(5):
    x = torch.randn(64, 300)
    for each in (layer, beside):
        for p in each.parameters():
            if p.grad is not None:
                p.grad.zero_()
        each(x).square().mean().backward()
    state.step(rate=1e-3)
    theirs.step()
for ours, p in zip(layer.parameters(), beside.parameters()):
    assert (ours - p).abs().max() < 1e-6
print("PyTorch: gradients equal to the bit with activations in the tiers; AdamW beside torch.optim within 1e-6")
