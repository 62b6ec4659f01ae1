"""Adapters of every beginning that PEFT has (init_lora_weights), as terrace takes them.

    adapter_beginnings.py TERRACE FOLDER

PEFT puts adapters beside a small model with random weights, which some beginnings change, and writes them after their weights were changed a little.
terrace must have PEFT's own loss (a step with a learning rate that changes nothing), or refuse the adapter by the name of its beginning. A refused one
is written again as PEFT converts it for the model as it is, and must be taken then. Exit code 77: a module is absent.
"""

import json
import pathlib
import shutil
import sys

from terrace_runs import losses, outcome, terrace

SKIPPED = 77
try:
    import peft
    import torch
    import transformers
except ImportError as absent:
    print(f"skipped: python3 has no module {absent.name}; pip install torch transformers peft runs this test")
    sys.exit(SKIPPED)

transformers.utils.logging.disable_progress_bar()
SEQ, BATCH, RANK, ALPHA, LIMIT = 32, 4, 4, 6.0, 2e-5
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "vocab_size": 256}  # fmt: skip
CHANGES_NOTHING = [True, False, "gaussian", "orthogonal", "eva", "mica"]
CHANGES_THE_BASE = ["pissa", "pissa_niter_4", "olora", "corda", "lora_ga"]
# Adapters with another PEFT setting, which terrace must refuse.
OTHERS = {"use_dora": {"use_dora": True}, "rank_pattern": {"rank_pattern": {"layers.0.self_attn.q_proj": 2}},
          "lora_bias": {"lora_bias": True}, "layers_to_transform": {"layers_to_transform": [0]}, "modules_to_save": {"modules_to_save": ["lm_head"]}}  # fmt: skip


def base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager")


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1).double(), targets.flatten())


def adapted(folder, inputs, targets, beginning, more):
    model = base(folder)
    settings = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=beginning, **more)
    if beginning == "corda":
        from peft.tuners.lora.corda import preprocess_corda

        settings.corda_config = peft.CordaConfig(corda_method="kpm")
        preprocess_corda(model, settings, run_model=lambda: model(inputs))
    if beginning == "lora_ga":
        from peft.tuners.lora import LoraGAConfig, preprocess_loraga

        settings.lora_ga_config = LoraGAConfig()
        preprocess_loraga(model, settings, lambda: loss_of(model, inputs, targets).backward())
    return peft.get_peft_model(model, settings)


def change(model):
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.add_(0.03 * torch.randn(p.shape, generator=generator))


def main():
    program, folder = pathlib.Path(sys.argv[1]).absolute(), pathlib.Path(sys.argv[2]).absolute()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, peft {peft.__version__}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES)).save_pretrained(folder / "model")
    tokens = torch.randint(0, 256, (BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(5))
    (folder / "text").write_bytes(bytes(tokens.tolist()))
    inputs, targets = tokens[: BATCH * SEQ].view(BATCH, SEQ), tokens[1 : BATCH * SEQ + 1].view(BATCH, SEQ)
    wrong = []

    def command(adapter):
        settings = json.loads((folder / adapter / "adapter_config.json").read_text())
        return ["train", "--model", "model", "--data", "text", "--data-format", "bytes",
                "--seq-len", SEQ, "--batch-size", BATCH, "--eval-batches", 0, "--warmup", 0,
                "--steps", 1, "--lr", 1e-30, "--min-lr", 1e-30, "--device-memory", "unlimited", "--host-memory", "unlimited",
                "--lora-rank", settings["r"], "--lora-alpha", settings["lora_alpha"], "--init-adapter", adapter, "--out-dir", "run"]  # fmt: skip

    def same_loss(name, adapter, wanted):
        shutil.rmtree(folder / "run", ignore_errors=True)
        terrace(program, folder, *command(adapter))
        found = losses(folder, "run")[0]
        off = abs(found - wanted) / wanted
        print(f"{name}: loss {found:.6f}, PEFT's {wanted:.6f}", flush=True)
        if not off <= LIMIT:
            wrong.append(f"{name}: the loss differs by {off:.1e}, more than {LIMIT}")

    def refused(name, adapter, key):
        code, _, errors = outcome(program, folder, *command(adapter))
        said = errors.strip().splitlines()
        print(f"{name}: {said[0] if said else 'nothing'}", flush=True)
        if code != 2 or key not in errors:
            wrong.append(f"{name}: it ended with {code}, and not with 2 because of {key}")

    for beginning in CHANGES_NOTHING + CHANGES_THE_BASE:
        try:
            model = adapted(folder, inputs, targets, beginning, {})
        except ImportError as absent:
            print(f"{beginning}: not made, because there is no module {absent.name}")
            continue
        model.peft_config["default"].init_lora_weights = True
        model.save_pretrained(folder / "first")
        model.peft_config["default"].init_lora_weights = beginning
        change(model)
        wanted = loss_of(model, inputs, targets).item()
        model.save_pretrained(folder / "adapter")
        if beginning in CHANGES_NOTHING:
            same_loss(str(beginning), "adapter", wanted)
            continue
        refused(beginning, "adapter", "init_lora_weights")
        model.save_pretrained(folder / "converted", path_initial_model_for_weight_conversion=str(folder / "first"))
        same_loss(f"{beginning}, converted", "converted", wanted)
        shutil.rmtree(folder / "converted")
    for key, more in OTHERS.items():
        adapted(folder, inputs, targets, True, more).save_pretrained(folder / "other")
        refused(key, "other", key)
        shutil.rmtree(folder / "other")
    if wrong:
        sys.exit("\n".join(wrong))


main()
