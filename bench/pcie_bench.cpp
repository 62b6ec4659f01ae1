// The link between host and device. It waits for a CUDA device: this build's only device is the CPU, whose memory no link leads
// to
// (`bench ram` has its copies).
#include <terrace/bench/host_benches.h>
#include <terrace/core/error.h>

namespace terrace::bench {
namespace {

class PcieBench final : public Bench {
 public:
  std::string_view name() const override { return "pcie"; }
  std::string_view help() const override { return "copies between host and device (waits for a CUDA device)"; }
  void run(Session&) override {
    throw Error(
        "there is no CUDA device: this build has the cpu device only, and no link to measure\n  bench ram measures the copies "
        "that the cpu device makes",
        Exit::hardware_missing);
  }
};

}  // namespace

std::unique_ptr<Bench> make_pcie_bench() { return std::make_unique<PcieBench>(); }

}  // namespace terrace::bench
