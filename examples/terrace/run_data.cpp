#include <terrace/examples/terrace/run_data.h>

#include <fmt/format.h>

#include <vector>

namespace terrace::cli {

RunData::RunData(const RunConfig& config)
    : corpus_(lm::Corpus::open(config.data, {}, lm::token_format(config.data_format, config.vocab))),
      sequences_(lm::plan_sequences(corpus_.tokens(), static_cast<std::uint64_t>(config.seq_len))),
      seed_(config.seed) {}

bool RunData::read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                   std::span<std::int32_t> targets) try {
  std::vector<std::uint64_t> starts;
  for (const auto sequence : sequences)
    starts.push_back(split == Split::training ? sequences_.sequence_start(seed_, sequence)
                                              : sequences_.evaluation_start(sequence % sequences_.evaluation_sequences));
  corpus_.fill(starts, sequences_.seq_len, tokens, targets);
  return error_ == nullptr;
} catch (const Error&) {
  error_ = std::current_exception();
  return false;
}

void RunData::demand(Team& team, const std::function<std::string()>& kept) const {
  team.together([&] {
    if (!error_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      throw Error(fmt::format("{}\n  {}", error.what(), kept()));
    }
  });
}

}  // namespace terrace::cli
