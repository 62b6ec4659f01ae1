"""Every family with every setting that a config.json can tell: what terrace exports is loaded by Hugging Face's library, and is the same model.

    exported_models.py TERRACE FOLDER [FAMILY…]

Each model is made by flags and trained for some steps, so that every setting shows in its loss, and exported. terrace reads the directory and says the
loss of a text, which must be that of the model that the library loads. An export that terrace refuses must say that the library does not have such a
model. Prints the largest deviation and how many exports were refused. Exit code 77: a module is absent.
"""

import pathlib
import shutil
import sys

from terrace_runs import losses, outcome, terrace

SKIPPED = 77
try:
    import torch
    import transformers
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install torch transformers runs this test")
    sys.exit(SKIPPED)

SEQ, BATCH, LIMIT = 32, 4, 2e-5
SIZES = ["--layers", 3, "--hidden", 64, "--heads", 4, "--ffn", 96, "--vocab", 256]
PAIRS = 8
SETTINGS = {
    "plain": [],
    "the other ties": ["--untied"],
    "few key-value heads": ["--kv-heads", 2],
    "wide heads": ["--head-dim", 24],
    "heads that do not divide": ["--heads", 5, "--head-dim", 16],
    "a larger vocabulary": ["--vocab", 32001],
    "a window": ["--window", 9],
    "windows of some layers": ["--window", "9,0"],
    "windows of later layers": ["--window", "0,9,9"],
    "another base": ["--rope-base", 500],
    "another base of windows": ["--window-rope-base", 77, "--window", "9,9,0"],
    "linear": ["--rope-scaling", "linear:factor=4"],
    "dynamic": ["--rope-scaling", "dynamic:factor=2,original=16"],
    "llama3": ["--rope-scaling", "llama3:factor=8,low=1,high=4,original=16"],
    "yarn": ["--rope-scaling", "yarn:factor=4,original=16"],
    "yarn with all its numbers": ["--rope-scaling", "yarn:factor=4,original=16,fast=8,slow=2,length=1.5,whole=false"],
    "longrope, far": ["--rope-scaling", f"longrope:original=16,length=1.2,short={'/'.join(['1.5'] * PAIRS)},long={'/'.join(['3'] * PAIRS)}"],
    "longrope, near": ["--rope-scaling", f"longrope:original=32,length=1.2,short={'/'.join(['1.5'] * PAIRS)},long={'/'.join(['3'] * PAIRS)}"],
    "a part of a head": ["--rope-fraction", 0.5],
    "layers that do not rotate": ["--rope-layers", "1,0"],
    "another epsilon": ["--norm-eps", 0.01],
    "another scalar": ["--query-scalar", 20],
    "a broken scalar": ["--query-scalar", 24.5],
    "capped scores": ["--attention-cap", 0.5],
    "capped logits": ["--logit-cap", 0.75],
    "no caps": ["--attention-cap", 0, "--logit-cap", 0],
    "biases of attention": ["--attention-bias"],
    "biases of the MLP": ["--mlp-bias"],
    "exact GELU": ["--activation", "gelu"],
    "GELU's approximation": ["--activation", "gelu_pytorch_tanh"],
    "SiLU": ["--activation", "silu"],
    "gates of all": ["--router-gates", "all"],
    "bf16": ["--dtype", "bf16"],
}  # fmt: skip
FAMILIES = {
    "gemma": ["--head-dim", 16],
    "gemma2": ["--head-dim", 16, "--window", "9,0"],
    "gemma3": ["--head-dim", 16, "--window", "9,9,0"],
    "gpt2": [],
    "llama": [],
    "mistral": [],
    "mixtral": ["--experts", 4],
    "olmo2": [],
    "phi3": [],
    "qwen2": [],
    "qwen3": ["--head-dim", 16],
    "qwen3_moe": ["--experts", 4, "--head-dim", 16],
    "smollm3": [],
}


def together(*lists):
    """Later settings stand above earlier ones."""
    told = {}
    for words in lists:
        i = 0
        while i < len(words):
            has_value = i + 1 < len(words) and not str(words[i + 1]).startswith("--")
            told[words[i]] = [words[i + 1]] if has_value else []
            i += 1 + has_value
    return [word for flag, value in told.items() for word in (flag, *value)]


def compare(program, folder, family, words):
    """The deviation of the losses, or None where the export is refused; a text is a mistake."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokens = torch.randint(0, 256, (BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(5))
    (folder / "text").write_bytes(bytes(tokens.tolist()))
    common = ["--data", "text", "--data-format", "bytes",
              "--seq-len", SEQ, "--batch-size", BATCH, "--eval-batches", 0, "--warmup", 0, "--lr-schedule", "constant",
              "--device-memory", "unlimited", "--host-memory", "unlimited"]  # fmt: skip
    made = together(SIZES, FAMILIES[family], words)
    code, _, said = outcome(program, folder, "train", "--model", family, *made, *common, "--steps", 12, "--lr", 0.02, "--out-dir", "run")
    if code == 2:  # the family does not have the setting
        return None
    if code != 0:
        return f"train ended with {code}: {said}"
    code, _, said = outcome(program, folder, "ckpt", "export", "run", "model")
    if code == 2 and "none that Hugging Face's library has" in said:
        return None
    if code != 0:
        return f"export ended with {code}: {said}"
    dtype = ["--dtype", "bf16"] if "bf16" in words else []
    terrace(program, folder, "train", "--model", "model", *common, *dtype, "--steps", 1, "--lr", 1e-30, "--min-lr", 1e-30, "--out-dir", "look")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager").eval()
        inputs, targets = tokens[: BATCH * SEQ].view(BATCH, SEQ), tokens[1 : BATCH * SEQ + 1].view(BATCH, SEQ)
        with torch.no_grad():
            theirs = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1).double(), targets.flatten()).item()
    except Exception as error:  # of any kind
        return f"the library cannot load it: {type(error).__name__} {error}"
    mine = losses(folder, "look")[0]
    return abs(mine - theirs) / theirs


def main():
    program, folder = pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2]).absolute()
    only = sys.argv[3:]  # only these families
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    wrong = []
    for family in FAMILIES:
        if only and family not in only:
            continue
        found = {name: compare(program, folder / "model", family, words) for name, words in SETTINGS.items()}
        limits = {name: 5e-3 if "bf16" in SETTINGS[name] else LIMIT for name in SETTINGS}
        wrong += [f"{family}, {name}: {value}" for name, value in found.items() if isinstance(value, str) or (value or 0) > limits[name]]
        compared = [value for name, value in found.items() if isinstance(value, float) and name != "bf16"]
        refused = [name for name, value in found.items() if value is None]
        print(f"{family}: {len(compared)} exports, largest deviation of a loss {max(compared):.1e}; refused: {', '.join(refused)}", flush=True)
    if wrong:
        sys.exit("\n".join(wrong))


main()
