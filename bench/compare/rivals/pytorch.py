"""One turn of PyTorch in memory: pytorch.py SETTING.json eager|compiled. See llama.py."""

import json
import pathlib
import sys

import llama
import torch


def main():
    setting = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(setting["threads"])
    model = llama.loaded(setting)
    forward = torch.compile(model) if sys.argv[2] == "compiled" else model
    adamw = setting["adamw"]
    optimizer = torch.optim.AdamW(llama.groups(model, adamw["decay"]), lr=adamw["lr"], betas=adamw["betas"], eps=adamw["eps"], fused=True)

    def step(tokens, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=setting["dtype"] == "bf16"):
            loss = forward(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), adamw["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    llama.train(setting, step)


if __name__ == "__main__":
    main()
