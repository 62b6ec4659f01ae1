// What a run reads and writes besides its data, and how it behaves while it runs.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <terrace/examples/terrace/config/resume.h>
#include <terrace/examples/terrace/config/words.h>

namespace terrace::cli {

struct RunOptions {
  std::string model_dir;     // of --model, until it has been read; empty: --model names a family
  std::string init_from;     // a safetensors file, or a directory of them
  std::string init_adapter;  // a directory of adapters, as PEFT writes it
  std::string save;
  std::filesystem::path out_dir = "runs/terrace";
  Resume resume;
  bool force = false;  // resume although the model, data or seed differ
  std::int64_t ckpt_interval = 0;
  std::int64_t ckpt_keep = 1;
  Durability durability = Durability::commit;
  std::int64_t threads = 0;          // 0: every core this process may use
  std::int64_t io_deadline = 120;    // in seconds; 0: none
  std::int64_t rank_deadline = 600;  // in seconds
  bool json = false;
  bool tensorboard = false;          // an event file in the run directory
  std::filesystem::path prometheus;  // a text file of the last step's metrics; empty: none
  bool verify_resident = false;      // repeat the first steps without offloading and compare every loss
};

}  // namespace terrace::cli
