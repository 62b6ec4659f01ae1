#include <terrace/examples/lm/data/corpus.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/core/math/philox.h>
#include <terrace/offload/store/chunk_store.h>

#include <terrace/examples/lm/data/corpus_file.h>
#include <terrace/examples/lm/data/token_scan.h>

namespace terrace::lm {
namespace {

constexpr std::uint64_t kHeldOutOneIn = 20;  // 5 %
// llm.c's header in token files for GPT-2, whose tokens have two bytes.
constexpr std::size_t kLlmCHeaderBytes = 1024;
constexpr std::uint32_t kLlmCVersion = 1;

}  // namespace

TokenFormat token_format(std::string_view name, std::int64_t vocabulary) {
  if (name == "bytes") return {1, vocabulary};
  if (name == "u16") return {2, vocabulary};
  if (name == "u32") return {4, vocabulary};
  if (name == "llm.c") return {2, vocabulary, kLlmCHeaderBytes};
  throw base::Refused(fmt::format("unknown token format {}\n  give bytes, u16, u32 or llm.c", name));
}

std::uint64_t tokens_in_file(const std::filesystem::path& path, TokenFormat format) {
  const CorpusFile file(path);
  const auto bytes = file.bytes();
  if (format.header == 0) {
    if (bytes % format.bytes != 0)
      throw base::Refused(
          fmt::format("corpus file {} has {} bytes, which is not a multiple of the {} bytes of a token\n  give the right "
                      "--data-format",
                      path.string(), bytes, format.bytes));
    return bytes / format.bytes;
  }
  std::array<std::uint32_t, 3> header{};  // magic number, version, tokens
  if (bytes >= format.header) file.read(0, {reinterpret_cast<unsigned char*>(header.data()), sizeof header});
  if (header[0] != kLlmCMagic || header[1] != kLlmCVersion || bytes != format.header + std::uint64_t{header[2]} * format.bytes)
    throw base::Refused(fmt::format(
        "corpus file {} has not the header of llm.c for its {} bytes\n  give the right --data-format", path.string(), bytes));
  return header[2];
}

Corpus Corpus::open(const std::vector<std::filesystem::path>& files, CorpusWindows windows, TokenFormat format) {
  windows.bytes = windows.bytes / format.bytes * format.bytes;  // whole tokens
  if (windows.bytes == 0 || windows.count == 0) throw base::Refused("a corpus needs at least one window of one byte");
  std::vector<File> kept;
  std::uint64_t tokens = 0, all_windows = 0;
  for (const auto& path : files) {
    const auto state = CorpusFile(path).state();  // before anything is read
    const auto of_file = tokens_in_file(path, format);
    if (of_file > 0)
      kept.push_back({.path = path, .first = tokens, .tokens = of_file, .state = state, .first_window = all_windows});
    tokens += of_file;
    all_windows += (of_file * format.bytes + windows.bytes - 1) / windows.bytes;
  }
  windows.checked = static_cast<std::size_t>(std::min<std::uint64_t>(windows.checked, all_windows));
  if (tokens == 0)
    throw base::Refused(
        fmt::format("the corpus is empty: {} files, 0 bytes\n  give --data a file with text in it", files.size()));
  return {std::move(kept), tokens, windows, format};
}

Corpus::Corpus(std::vector<File> files, std::uint64_t tokens, CorpusWindows windows, TokenFormat format)
    : files_(std::move(files)), tokens_(tokens), limits_(windows), format_(format), checked_(windows.checked) {}

const Corpus::Window& Corpus::window(std::size_t file, std::uint64_t index) {
  const auto found = std::ranges::find_if(windows_, [&](const Window& w) { return w.file == file && w.index == index; });
  if (found != windows_.end()) {
    windows_.splice(windows_.begin(), windows_, found);
    return windows_.front();
  }
  // Reuses the memory of the oldest window; it leaves the list until its new bytes have been read, because the read may fail.
  std::list<Window> fresh;
  if (windows_.size() < limits_.count) {
    fresh.emplace_back();
  } else {
    fresh.splice(fresh.begin(), windows_, std::prev(windows_.end()));
  }
  Window& w = fresh.front();
  w.file = file;
  w.index = index;
  const std::uint64_t offset = index * limits_.bytes;
  w.bytes.resize(
      static_cast<std::size_t>(std::min<std::uint64_t>(limits_.bytes, files_[file].tokens * format_.bytes - offset)));
  const CorpusFile opened(files_[file].path);
  opened.demand_unchanged(files_[file].state);
  opened.read(format_.header + offset, w.bytes);
  opened.demand_unchanged(files_[file].state);  // a write may have begun after the first check
  demand_same_bytes(w);
  windows_.splice(windows_.begin(), fresh);
  return windows_.front();
}

// File times alone do not prove it: their resolution is coarse, and some programs reset them.
void Corpus::demand_same_bytes(const Window& w) {
  if (checked_.empty()) return;
  const auto number = files_[w.file].first_window + w.index;
  const auto checksum = checksum_of(std::as_bytes(std::span(w.bytes)));
  auto& known = checked_[number % checked_.size()];
  if (known.window == number && known.checksum != checksum)
    throw Error(
        fmt::format("corpus file {} has changed while it was in use: bytes {} to {} are not those that were read before",
                    files_[w.file].path.string(), format_.header + w.index * limits_.bytes,
                    format_.header + w.index * limits_.bytes + w.bytes.size() - 1));
  known = {number, checksum};
}

void Corpus::read(std::uint64_t first, std::span<std::int32_t> out) {
  if (first > tokens_ || out.size() > tokens_ - first) {
    throw Error(fmt::format("tokens {}..{} were requested from a corpus of {}", first, first + out.size(), tokens_));
  }
  if (out.empty()) return;
  auto file = static_cast<std::size_t>(std::ranges::upper_bound(files_, first, {}, [](const File& f) { return f.first; }) -
                                       files_.begin() - 1);
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t offset = first + done - files_[file].first;
    if (offset == files_[file].tokens) {
      ++file;
      continue;
    }
    const auto width = format_.bytes, window_tokens = limits_.bytes / width;
    const Window& w = window(file, offset / window_tokens);
    const auto begin = static_cast<std::size_t>(offset % window_tokens);
    const std::size_t count = std::min(out.size() - done, w.bytes.size() / width - begin);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t token = 0;
      for (std::size_t b = width; b-- > 0;) token = token << 8U | w.bytes[(begin + i) * width + b];
      if (static_cast<std::int64_t>(token) >= format_.vocabulary)
        throw Error(describe_foreign_token(files_[file].path, offset + i, token, format_.vocabulary) +
                    "\n  the file has changed since it was checked at the start of the run");
      out[done + i] = static_cast<std::int32_t>(token);
    }
    done += count;
  }
}

void Corpus::fill(std::span<const std::uint64_t> starts, std::uint64_t seq_len, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) {
  if (seq_len == 0 || tokens.size() != starts.size() * seq_len || targets.size() != tokens.size()) {
    throw Error(fmt::format("a batch of {} sequences of {} tokens does not fit {} tokens and {} targets", starts.size(),
                            seq_len, tokens.size(), targets.size()));
  }
  for (std::size_t row = 0; row < starts.size(); ++row) {
    const auto inputs = tokens.subspan(row * seq_len, seq_len), next = targets.subspan(row * seq_len, seq_len);
    read(starts[row], inputs);
    std::copy(inputs.begin() + 1, inputs.end(), next.begin());
    read(starts[row] + seq_len, next.last(1));
  }
}

std::size_t Corpus::held_bytes() const {
  std::size_t bytes = 0;
  for (const auto& w : windows_) bytes += w.bytes.capacity();
  return bytes;
}

SequencePlan plan_sequences(std::uint64_t corpus_tokens, std::uint64_t seq_len, bool holds_out) {
  constexpr std::uint64_t kLongest = std::uint64_t{1} << 62;
  if (seq_len == 0 || seq_len >= kLongest) throw base::Refused(fmt::format("a sequence cannot have {} tokens", seq_len));
  const std::uint64_t one = seq_len + 1;
  if (!holds_out && corpus_tokens >= one) return {.seq_len = seq_len, .training_sequences = (corpus_tokens - 1) / seq_len};
  if (!holds_out)
    throw base::Refused(
        fmt::format("the corpus has {} tokens, but {} are needed: one sequence of {} tokens, with one more token as the "
                    "last target\n  give more text with --data, or a shorter --seq-len",
                    corpus_tokens, one, seq_len));
  if (corpus_tokens < 2 * one) {
    throw base::Refused(
        fmt::format("the corpus has {} tokens, but {} are needed: one training and one evaluation sequence of {} tokens, "
                    "each with one more token as the last target\n  give more text with --data, or a shorter --seq-len",
                    corpus_tokens, 2 * one, seq_len));
  }
  const std::uint64_t held_out = std::max(one, corpus_tokens / kHeldOutOneIn);
  const std::uint64_t training = corpus_tokens - held_out;
  return {.seq_len = seq_len,
          .training_sequences = (training - 1) / seq_len,
          .evaluation_begin = training,
          .evaluation_sequences = (held_out - 1) / seq_len};
}

std::uint64_t SequencePlan::sequence_start(std::uint64_t seed, std::uint64_t global_index) const {
  return permuted(seed, global_index / training_sequences, global_index % training_sequences, training_sequences) * seq_len;
}

std::uint64_t SequencePlan::evaluation_start(std::uint64_t i) const {
  if (i >= evaluation_sequences) {
    throw Error(fmt::format("evaluation sequence {} was requested, but there are only {}", i, evaluation_sequences));
  }
  return evaluation_begin + i * seq_len;
}

// A Feistel network (Luby, Rackoff: "How to construct pseudorandom permutations from pseudorandom functions", 1988) over the
// smallest even number of bits that holds `count`, Philox as its round function; a result outside is permuted again, which
// ends after fewer than four rounds on average, because the domain is less than four times as large.
std::uint64_t permuted(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index, std::uint64_t count) {
  if (index >= count) throw Error(fmt::format("index {} is outside a permutation of {}", index, count));
  if (count == 1) return 0;
  constexpr std::uint64_t kRounds = 8;
  const int half_bits = (std::bit_width(count - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  const std::uint64_t stream = math::stream_of("data order") + epoch;
  std::uint64_t x = index;
  do {
    std::uint64_t left = x >> half_bits, right = x & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = math::random_u32(seed, stream, round << 32 | right);
      left = std::exchange(right, left ^ (mixed & mask));
    }
    x = left << half_bits | right;
  } while (x >= count);
  return x;
}

}  // namespace terrace::lm
