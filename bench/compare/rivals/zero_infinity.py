"""One turn of DeepSpeed ZeRO-Infinity: zero_infinity.py SETTING.json. See llama.py."""

import json
import os
import pathlib
import sys

os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29517"), RANK="0",
                  LOCAL_RANK="0", WORLD_SIZE="1")

import deepspeed
import llama
import torch
from deepspeed.runtime.swap_tensor.partitioned_param_swapper import AsyncPartitionedParameterSwapper


def config(setting):
    """Limits what stays in memory: the defaults keep 1,000 million parameters there, more than this model has. A layer has 7 million."""
    adamw = setting["adamw"]
    disk = {"device": "nvme", "nvme_path": setting["disk"]}
    return {
        "train_micro_batch_size_per_gpu": setting["batch"],
        "gradient_clipping": adamw["clip"],
        "bf16": {"enabled": setting["dtype"] == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": adamw["lr"], "betas": adamw["betas"], "eps": adamw["eps"]}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**disk, "max_in_cpu": 0, "buffer_count": 16, "buffer_size": 2_000_000},
            "offload_optimizer": {**disk, "buffer_count": 12, "pipeline_read": True, "pipeline_write": True},
            "sub_group_size": 4_000_000,
            "stage3_max_live_parameters": 8_000_000,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 4_000_000,
            "stage3_param_persistence_threshold": 10_000,
            "reduce_bucket_size": 4_000_000,
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True},
    }


def mend_prefetch():
    """Drops repeated reads. Around the end of the forward pass, the prefetch requests the weights of the last block twice, for the forward and
    for the backward pass, because the head between them is small and stays in memory. The second read would fail an assertion."""
    swap_in = AsyncPartitionedParameterSwapper.swap_in

    def swap_in_once(self, params, async_op=True, swap_in_buffers=None):
        return swap_in(self, list({param.ds_id: param for param in params}.values()), async_op, swap_in_buffers)

    AsyncPartitionedParameterSwapper.swap_in = swap_in_once


def main():
    mend_prefetch()
    setting = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(setting["threads"])
    model = llama.loaded(setting)
    settings = config(setting)
    if setting["dtype"] == "bf16":
        model.bfloat16()
    # initialize() would also convert the model, but on processors without fp16 instructions it keeps fp32 weights in a bf16
    # run.
    deepspeed.zero.Init(module=model, config_dict_or_path=settings)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=llama.groups(model, setting["adamw"]["decay"]), config=settings)

    def step(tokens, targets):
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        return loss

    llama.train(setting, step)


if __name__ == "__main__":
    main()
