// How weights are trained: the batch, the optimizer and its rates, what stays frozen, and when the run evaluates.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/examples/terrace/config/words.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::cli {

struct TrainConfig {
  std::int64_t batch_size = 8, grad_accumulation = 1, steps = 100;
  double epochs = 0;                // how often to train on all data; 0: `steps` decides
  std::string optimizer = "adamw";  // a name in optimizers/optimizer.h
  std::string recipe = "fp32";      // a name in optimizers/recipe.h
  OptimizerSettings rule;           // numbers in the optimizer's update rule
  ScheduleKind lr_schedule = ScheduleKind::cosine;
  double lr = 3e-4, min_lr = 3e-5;
  std::int64_t warmup = 10;  // steps
  double grad_clip = 1.0;
  std::string param_groups;    // read by parse_param_groups()
  std::string freeze;          // read by parse_freeze()
  std::int64_t lora_rank = 0;  // 0: no adapters
  double lora_alpha = 16;
  std::string lora_targets = "q,v";  // read by lm::adapters_of()
  NonFinite on_non_finite = NonFinite::stop;
  std::string loss_scale = "auto";  // auto | off | dynamic | a power of two
  std::uint64_t seed = 1;
  std::int64_t eval_interval = 0;  // in steps; 0: at the end only
  std::int64_t eval_batches = 4;
  bool eval_first = false;  // evaluate before the first step, too
};

}  // namespace terrace::cli
