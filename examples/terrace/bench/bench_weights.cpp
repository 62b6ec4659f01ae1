// `terrace bench weights`: times how a model's weights go from files into the store, and from the store into files. In turns
// with this it times what the disk can do with the same bytes.
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/disk/disk_limit.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/trace.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/fine_tuning.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/bench/bench_models.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/commands/export_command.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/parallel/run/engine.h>
#include <terrace/parallel/state/committed_state.h>
#include <terrace/parallel/train/initial_weights.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

// A folder that is removed with the object.
class Folder {
 public:
  explicit Folder(const fs::path& in) : path_(in / fmt::format("terrace-bench-{}", ::getpid())) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error)
      throw Error(fmt::format("bench weights: {} cannot be created: {}\n  give another directory", path_.string(),
                              describe_errno(error.value())));
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The peak of resident memory since the last call; 0 if the system does not report it.
std::uint64_t take_peak_resident_bytes() {
  std::uint64_t kib = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) kib = std::stoull(line.substr(6));
  std::ofstream("/proc/self/clear_refs") << 5;
  return kib * kKiB;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = now_ns();
  work();
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

// Processor time of all threads.
double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// The figures of one direction.
struct Way {
  std::string_view op;
  std::vector<double> seconds, processor = {}, disk_seconds = {};  // of each run; the disk alone, same bytes
  std::uint64_t peak_bytes = 0;                                    // resident memory

  void time(const std::function<void()>& work) {
    take_peak_resident_bytes();
    const double before = processor_seconds();
    seconds.push_back(seconds_of(work));
    processor.push_back(processor_seconds() - before);
    peak_bytes = std::max(peak_bytes, take_peak_resident_bytes());
  }
};

class WeightsBench final : public bench::Bench {
 public:
  explicit WeightsBench(const RunConfig& config) : given_(config) {}
  std::string_view name() const override { return "weights"; }
  std::string_view help() const override { return "a model's weights from files into chunks and back, beside the disk alone"; }
  std::vector<bench::Flag> flags() override {
    return {{"PATH", &path_, "directory on the disk; a model is written there, three times, and removed", 1, 1, {}, true}};
  }
  void check() override {
    bench::demand_directory(path_);
    validate(given_);
    demand_device(given_);
    if (given_.model.dtype == DType::fp16)
      throw base::Refused("bench weights: fp16 has no files of its own\n  give --dtype bf16 or fp32");
  }

  void run(bench::Session& session) override {
    const Folder folder(path_);
    auto config = given_;
    config.run.out_dir = folder.path() / "run";
    if (config.memory.nvme_path.empty()) config.memory.nvme_path = {folder.path()};
    config.run.durability = Durability::off;  // one generation, committed at the end
    config.plan.assumed_costs = true;
    config = with_chosen_tiles(config);
    const auto model = lm::make_model(model_config(config));
    const auto without = lm::without_adapters(model_config(config));
    const auto base = lm::make_model(without);

    session.progress("planning …");
    const auto plan = make_plan(config, model, plan_request(config), machine_profile(config));
    if (!plan.fits) throw refusal_error(config, plan);
    auto pool = make_pool(config);
    const auto device = make_device(config, pool);
    const auto optimizer = optimizer_of(config, *device);
    session.progress("writing a model …");
    const auto from = folder.path() / "model", to = folder.path() / "exported";
    fs::create_directories(from);
    lm::write_weight_files(from, base, without.dtype, kMostFileBytes, random_weights(config.train.seed));
    config.run.init_from = from;

    Way load{"load", {}}, exported{"export", {}};
    std::vector<bench::FileRange> files, chunks;
    std::uint64_t file_bytes = 0, chunk_bytes = 0;
    const auto name = fs::path(fmt::format("terrace-bench-{}-store", ::getpid()));
    const ChunkStore::Options store{
        .paths = config.memory.nvme_path, .name = name, .generations = plan.generations, .io = io_of_environment()};
    const struct StoreFiles {
      const ChunkStore::Options& store;
      ~StoreFiles() {
        std::error_code ignored;
        for (const auto& path : store.paths) fs::remove_all(path / store.name, ignored);
      }
    } remove_store{store};
    auto reading = store;
    reading.read_only = true;
    for (const auto& file : lm::weight_files(from)) {
      const auto bytes = fs::file_size(file);
      file_bytes += bytes;
      files.push_back({file, 0, bytes / kPageBytes * kPageBytes});
    }

    for (std::int64_t run = 0; run < session.runs() && !session.stopped(); ++run) {
      session.progress(fmt::format("run {} of {}: loading", run + 1, session.runs()));
      {
        Engine engine(model, plan, {.device = device.get(), .store = store, .optimizer = optimizer.get()});
        const auto weights = lm::first_weights(config.run.init_from, model_config(config), config.train.seed);
        for (const auto& path : store.paths) bench::settle(path);
        load.time([&] {
          engine.fill(weights);
          engine.commit(0, "{}");
        });
      }
      chunks.clear();
      chunk_bytes = 0;
      {
        const auto written = ChunkStore::open(reading);
        for (const auto& chunk : written->committed())
          for (const auto& piece : written->pieces(chunk.offset, chunk.description.bytes)) {
            chunks.push_back({store.paths[static_cast<std::size_t>(piece.file)] / name / "data", piece.offset, piece.bytes});
            chunk_bytes += piece.bytes;
          }
      }
      session.progress(fmt::format("run {} of {}: the disk", run + 1, session.runs()));
      load.disk_seconds.push_back(bench::disk_seconds(files, folder.path(), chunk_bytes));
      session.progress(fmt::format("run {} of {}: exporting", run + 1, session.runs()));
      fs::create_directories(to);
      bench::settle(to);
      exported.time([&] {
        state::CommittedState state({&reading, 1});
        write_committed_weights(state, base, without.dtype, to);
      });
      if (run == 0) demand_same(from, to);
      fs::remove_all(to);
      session.progress(fmt::format("run {} of {}: the disk", run + 1, session.runs()));
      exported.disk_seconds.push_back(bench::disk_seconds(chunks, folder.path(), file_bytes));
    }
    for (const auto& way : {load, exported}) {
      if (way.seconds.empty()) continue;
      std::vector<double> ratios;
      for (std::size_t r = 0; r < way.seconds.size(); ++r) ratios.push_back(way.disk_seconds[r] / way.seconds[r]);
      const auto gb = 1e-9 * static_cast<double>(file_bytes + chunk_bytes);
      session.result(
          {{"op", way.op},
           {"model", *config.model.family.get().name},
           {"file_bytes", file_bytes},
           {"chunk_bytes", chunk_bytes},
           {"gb_per_s", gb / bench::median(way.seconds)},
           {"disk_gb_per_s", gb / bench::median(way.disk_seconds)},
           {"ratio", bench::median(ratios)},
           {"cpu_s_per_gib", bench::median(way.processor) * static_cast<double>(kGiB) / static_cast<double>(file_bytes)},
           {"peak_resident_bytes", way.peak_bytes},
           {"runs", ratios.size()},
           {"spread", bench::spread(ratios)}});
    }
  }

 private:
  // Throws if the exported files differ from the loaded ones in a byte. Untimed.
  static void demand_same(const fs::path& one, const fs::path& other) {
    for (const auto& file : lm::weight_files(one)) {
      std::ifstream a(file, std::ios::binary), b(other / file.filename(), std::ios::binary);
      std::vector<char> of_a(4 * kMiB), of_b(of_a.size());
      while (a && b) {
        a.read(of_a.data(), std::ssize(of_a));
        b.read(of_b.data(), std::ssize(of_b));
        if (a.gcount() != b.gcount() || !std::equal(of_a.begin(), of_a.begin() + a.gcount(), of_b.begin()))
          throw Error(fmt::format("{} was exported with other bytes than it was loaded from", file.filename().string()),
                      ErrorKind::corrupt);
      }
      if (static_cast<bool>(a) != static_cast<bool>(b))
        throw Error(fmt::format("{} was exported with another length", file.filename().string()), ErrorKind::corrupt);
    }
  }

  const RunConfig& given_;
  fs::path path_;
};

}  // namespace

std::unique_ptr<bench::Bench> make_weights_bench(const RunConfig& config) { return std::make_unique<WeightsBench>(config); }

}  // namespace terrace::cli
