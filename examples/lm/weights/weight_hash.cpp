#include <terrace/examples/lm/weights/weight_hash.h>

#include <bit>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

static_assert(std::endian::native == std::endian::little, "the hash is over little-endian bytes");

namespace terrace::lm {

struct WeightHash::State {
  XXH64_state_t* xxh = XXH64_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH64_reset(xxh, 0);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH64_freeState(xxh); }

  template <class T>
  void add(std::span<const T> range) {
    if (!range.empty()) XXH64_update(xxh, range.data(), range.size_bytes());
  }
};

WeightHash::WeightHash() : state_(std::make_unique<State>()) {}
WeightHash::~WeightHash() = default;

void WeightHash::add(std::span<const float> range) { state_->add(range); }
void WeightHash::add(std::span<const double> range) { state_->add(range); }
void WeightHash::add(std::span<const bf16> range) { state_->add(range); }

std::uint64_t WeightHash::value() const { return XXH64_digest(state_->xxh); }
std::string WeightHash::hex() const { return fmt::format("{:016x}", value()); }

std::string combined(std::span<const WeightHash> hashes) {
  if (hashes.size() == 1) return hashes.front().hex();
  std::vector<std::uint64_t> values;
  for (const auto& hash : hashes) values.push_back(hash.value());
  return fmt::format("{:016x}", XXH64(values.data(), values.size() * sizeof(values[0]), 0));
}

}  // namespace terrace::lm
