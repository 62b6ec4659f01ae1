// All settings of a run and their defaults. Flags, TOML keys and the saved configuration come from the table over these fields
// in options.h.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/terrace/config/resume.h>
#include <terrace/examples/terrace/config/words.h>

namespace terrace::cli {

struct RunConfig {
  // model and data
  std::string model = "llama";                                              // the name of a family (lm/family.h)
  std::int64_t layers = 6, hidden = 256, heads = 8, kv_heads = 0, ffn = 0;  // 0: as usual in the family
  std::int64_t head_dim = 0;                                                // 0: hidden ÷ heads
  std::int64_t seq_len = 256, vocab = 256;
  double rope_base = 0, norm_eps = 0;             // 0: as usual in the family
  std::string rope_scaling = "none";              // read by lm::parse_rope_scaling()
  double rope_fraction = 1;                       // the rotated share of a head
  double window_rope_base = 0;                    // 0: as usual in the family
  double query_scalar = 0;                        // 0: the width of a head
  double attention_cap = -1, logit_cap = -1;      // 0: none; −1: as usual in the family
  std::string activation = "usual";               // as usual in the family, or a name for lm::activation_named()
  bool attention_bias = false, mlp_bias = false;  // false: as usual in the family
  std::string rope_layers = "usual";              // as usual in the family, or a text for layers::RotatedBlocks::parse()
  layers::SkipShape skips = layers::SkipShape::none;
  std::int64_t experts = 0, experts_per_token = 2, shared_experts = 0;
  double expert_capacity = 0, router_aux_loss = 0, router_z_loss = 0;
  std::string router_gates = "chosen";  // chosen | all
  bool untied = false;                  // the output head has its own weights
  std::int64_t vocab_tiles = 1, mlp_tiles = 1, mlp_row_tiles = 1, attention_tiles = 1;
  Tiles tiles = Tiles::automatic;  // automatic: if no number of tiles is given, as few as fit; off: as given
  std::int64_t head_rows = 0;
  std::string window = "0";  // how many positions a position attends to, for the blocks in turn; 0: all before it
  std::vector<std::filesystem::path> data;
  DataFormat data_format = DataFormat::automatic;  // automatic until the files have been looked at
  // Not options: the file with the token ids of each text file (token_cache.h), and the format of the ids.
  std::map<std::string, std::filesystem::path> token_files;
  DataFormat token_format = DataFormat::u32;
  lm::BadLine on_bad_line = lm::BadLine::stop;  // of conversations
  std::string tokenizer;                        // empty: the one in the directory of --init-from
  std::string template_date;                    // of jsonl: the day that strftime_now gives in a chat template; empty: none
  std::int64_t document_separator = -1;         // a token that ends a document; -1: none, each sequence is one document
  std::string init_from, save;
  DType dtype = DType::fp32;
  // training
  std::int64_t batch_size = 8, grad_accumulation = 1, steps = 100;
  bool chooses_batch = false;       // not an option: a published model, and neither of the two above is given (choose_batch.h)
  double epochs = 0;                // how often to train on all data; 0: `steps` decides
  std::string optimizer = "adamw";  // a name in optimizers/optimizer.h
  std::string recipe = "fp32";      // a name in optimizers/recipe.h
  double lr = 3e-4, min_lr = 3e-5, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, grad_clip = 1.0;
  double momentum = 0.9;
  bool nesterov = false;
  std::string param_groups;    // read by parse_param_groups()
  std::string freeze;          // read by parse_freeze()
  std::int64_t lora_rank = 0;  // 0: no adapters
  double lora_alpha = 16;
  std::string lora_targets = "q,v";  // read by lm::adapters_of()
  std::string init_adapter;          // a directory of adapters, as PEFT writes it
  NonFinite on_non_finite = NonFinite::stop;
  std::string loss_scale = "auto";  // auto | off | dynamic | a power of two
  ScheduleKind lr_schedule = ScheduleKind::cosine;
  std::int64_t warmup = 10;
  std::optional<Order> order;                           // horizontal or vertical; empty: the faster one
  std::int64_t group = 0;                               // micro-batches in a group of the vertical order; 0: all
  std::optional<std::uint32_t> recompute, activations;  // numbers of layers, or kAllLayers; empty: what is fastest
  std::optional<UpdatePlace> update;                    // empty: the fastest place
  std::uint64_t seed = 1;
  std::int64_t threads = 0;        // 0: every core this process may use
  std::int64_t eval_interval = 0;  // in steps; 0: at the end only
  std::int64_t eval_batches = 4;
  bool eval_first = false;                       // evaluate before the first step, too
  std::vector<std::filesystem::path> eval_data;  // empty: a part of `data` is held out
  // ranks that train on different micro-batches of a step
  std::int64_t dp = 0;           // 0: as many as were launched
  std::int64_t zero = 0;         // the ZeRO stage
  std::int64_t shard_group = 0;  // ranks that share one copy of the state; 0: all
  bool canonical_reduction = false;
  SumOrder sum_order = SumOrder::machines;
  std::int64_t ranks_per_machine = 0;  // 0: as the ranks really are on machines
  Travel compress_gradients = Travel::whole, compress_weights = Travel::whole;
  std::int64_t sync_interval = 1;  // steps between averages of the weights; 1: no averages, gradients are reduced in each step
  // ranks that hold different layers
  std::int64_t pp = 1;
  std::string schedule = "1f1b";     // a name in pipeline/orders.h, a file, or auto
  std::int64_t virtual_stages = 0;   // stages on each rank; 0: the schedule's usual number
  std::int64_t drain_interval = 10;  // steps between drains of an asynchronous schedule
  std::string stage_layers;          // "3,4,4"; empty: balanced
  // ranks that have a part of each layer
  std::int64_t tp = 1;
  TensorMode tp_mode = TensorMode::line;
  std::int64_t tp_depth = 1;    // number of grids, for 2.5d
  bool sp = false;              // between layers, each rank has its share of the positions
  std::int64_t tp_overlap = 1;  // with sp: pieces in which an exchange runs beside its product; 1: all at once, between layers
  std::int64_t cp = 1;          // ranks that share the positions of each sequence
  ContextMode cp_mode = ContextMode::ulysses;
  std::int64_t cp_ring = 2;  // for both: ranks of a ring
  std::int64_t ep = 1;       // ranks with other sequences and other experts
  // Not options: the indices of this rank, set in each rank.
  std::int64_t tensor_rank = 0, context_rank = 0, expert_rank = 0;

  [[nodiscard]] std::int64_t ranks() const { return (dp > 1 ? dp : 1) * pp * tp * cp * ep; }
  [[nodiscard]] std::int64_t ring() const {
    return cp == 1 || cp_mode == ContextMode::ulysses ? 1 : cp_mode != ContextMode::both ? cp : cp_ring;
  }
  std::int64_t local_ranks = 0;  // not an option: how many ranks share this machine; 0: all
  std::int64_t local_rank = 0;   // not an option: this rank's index among them, added to the number of the GPU
  // memory; sizes are text, because `auto` and `unlimited` are possible values
  std::string device = "auto";       // auto | cpu | cuda:N
  std::string found_device = "cpu";  // not an option: what `auto` means on this machine (usual_settings.h)
  [[nodiscard]] const std::string& device_name() const { return device == "auto" ? found_device : device; }
  [[nodiscard]] bool on_gpu() const { return device_name() != "cpu"; }
  std::string device_memory = "auto", host_memory = "auto", nvme_limit = "unlimited";
  std::vector<std::filesystem::path> nvme_path;  // empty: no disk tier
  std::optional<std::uint32_t> prefetch_depth;   // empty: chosen
  // runs
  std::filesystem::path out_dir = "runs/terrace";
  Resume resume;
  bool force = false;  // resume although the model, data or seed differ
  std::int64_t ckpt_interval = 0;
  std::int64_t ckpt_keep = 1;
  Durability durability = Durability::commit;
  std::int64_t io_deadline = 120;    // in seconds; 0: none
  std::int64_t rank_deadline = 600;  // in seconds
  bool json = false;
  bool tensorboard = false;                  // an event file in the run directory
  std::filesystem::path prometheus;          // a text file of the last step's metrics; empty: none
  bool verify_resident = false;              // repeat the first steps without offloading and compare every loss
  std::vector<std::string> chosen;           // not an option: what the program chose, and why: "--dtype bf16 (config.json)"
  std::set<std::string, std::less<>> given;  // not an option: the keys of the options that were given
  [[nodiscard]] bool is_given(std::string_view key) const { return given.contains(key); }
  bool assumed_costs = false;   // the plan's times come from the profile alone, as for another machine
  std::string machine_profile;  // a profile file; empty: the saved one, or assumed rates
};

}  // namespace terrace::cli
