#include <terrace/examples/terrace/bench/bench_all.h>

#include <fmt/format.h>

#include <map>
#include <string>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/bench/bench_table.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/measure.h>

namespace terrace::cli {
namespace {

constexpr double kProfile_s = 10;

class AllBench final : public bench::Bench {
 public:
  explicit AllBench(const RunConfig& config) : config_(config) {}
  std::string_view name() const override { return "all"; }
  std::string_view help() const override { return "all benches that can run here, and the machine profile that plan uses"; }
  std::vector<bench::Flag> flags() override {
    return {{"PATH", &path_, "directory on the disk", 1, 1, {}, true},
            {"quick", &quick_, "take seconds: small files and arrays, whose figures are those of caches; no machine profile"}};
  }
  void check() override { bench::demand_directory(path_); }

  void run(bench::Session& session) override {
    for (const auto& entry : bench_table()) {
      const auto one = entry.make(config_);
      if (one->name() == name() || session.stopped()) continue;
      session.note(fmt::format("\n{}: {}", one->name(), one->help()));
      session.begin(one->name());
      try {
        set(*one);
        one->check();
        one->run(session);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::missing)
          session.fail(error);
        else
          session.note(fmt::format("skipped: {}", error.what()));
      } catch (const std::exception& error) {
        session.fail(error);
      }
    }
    if (!quick_ && !session.stopped()) save(session);
  }

 private:
  // Sets the path and, with --quick, the sizes of a bench, by the names of its flags.
  void set(bench::Bench& one) const {
    static const std::map<std::string, std::uint64_t> sizes{{"nvme size", 8 * kMiB},
                                                            {"nvme block-size", kMiB},
                                                            {"ram size", kMiB},
                                                            {"pcie size", kMiB},
                                                            {"pcie disk-size", 8 * kMiB},
                                                            {"states host-memory", 32 * kMiB},
                                                            {"states chunk-size", 4 * kMiB}};
    static const std::map<std::string, std::int64_t> numbers{
        {"compute n", 128},       {"optimizer params", 100'000}, {"stream params", 4'000'000}, {"states params", 5'000'000},
        {"pipeline ranks", 2},    {"pipeline micro-batches", 4}, {"pipeline unit-ms", 2},      {"bubbles unit-ms", 2},
        {"bubbles disk-ms", 20},  {"overlap layers", 3},         {"overlap unit-ms", 2},       {"overlap link-ms", 1},
        {"pieces product-ms", 6}, {"pieces link-ms", 4}};
    for (auto& flag : one.flags()) {
      const auto key = fmt::format("{} {}", one.name(), flag.name);
      if (auto* const* const path = std::get_if<std::filesystem::path*>(&flag.target);
          path && (flag.positional || key == "pcie disk"))
        **path = path_;
      if (auto* const* const paths = std::get_if<std::vector<std::filesystem::path>*>(&flag.target)) **paths = {path_};
      if (!quick_) continue;
      if (auto* const* const size = std::get_if<std::uint64_t*>(&flag.target); size && sizes.contains(key))
        **size = sizes.at(key);
      if (auto* const* const number = std::get_if<std::int64_t*>(&flag.target); number && numbers.contains(key))
        **number = numbers.at(key);
    }
  }

  void save(bench::Session& session) const {
    session.progress("measuring the machine profile …");
    ThreadPool pool(0);
    const auto profile = measure_machine(*make_device(config_, pool), {path_}, kProfile_s);
    const auto file = profile_file(config_);
    save_profile(profile, file);
    session.machine("profile", file.string());
    session.note(fmt::format("\nthe machine profile was saved as {}; terrace plan uses it", file.string()));
  }

  const RunConfig& config_;
  std::filesystem::path path_;
  bool quick_ = false;
};

}  // namespace

std::unique_ptr<bench::Bench> make_all_bench(const RunConfig& config) { return std::make_unique<AllBench>(config); }

}  // namespace terrace::cli
