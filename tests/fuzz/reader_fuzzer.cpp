// libFuzzer's entry point for the readers of files; tests/fuzz.sh builds it and runs it once for each reader.
//
//   reader --reader=NAME [libFuzzer's flags] FOLDERS…
//
// The file is damaged as a tree (json_mutator.h), so that nearly every input passes the JSON parser; one change in eight is
// made to bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <terrace/tests/fuzz/json_mutator.h>
#include <terrace/tests/fuzz/reader_checks.h>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace terrace::test {
namespace {

const ReaderCheck* reader = nullptr;

bool is(std::string_view name) { return reader->name == name; }

std::string with_bytes_changed(std::string text, std::size_t most) {
  const auto size = std::min(text.size(), most);
  text.resize(most);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, most));
  return text;
}

std::string json_damaged(const std::string& text, std::size_t most, Random& random, const std::string* other) {
  auto tree = random() % 8 == 0 ? std::nullopt : parse_json_node(text);
  if (!tree) return with_bytes_changed(text, most);
  auto graft_from = other ? parse_json_node(*other) : std::nullopt;
  if (graft_from)
    graft(*tree, *std::move(graft_from), random);
  else
    for (auto times = 1 + random() % 3; times > 0; --times) damage(*tree, random);
  auto out = text_of(*tree);
  return out.size() <= most ? out : text;
}

// A weight file: eight bytes of length, the header, the tensors. Mostly the length is adapted to the new header.
constexpr std::size_t kLengthBytes = 8;
std::string header_of(const std::string& file) {
  std::uint64_t length = 0;
  if (file.size() < kLengthBytes) return {};
  std::memcpy(&length, file.data(), kLengthBytes);
  return file.substr(kLengthBytes, std::min<std::uint64_t>(length, file.size() - kLengthBytes));
}
std::string safetensors_damaged(const std::string& file, std::size_t most, Random& random, const std::string* other) {
  const auto header = header_of(file);
  if (header.empty() || most < 64 || random() % 8 == 0) return with_bytes_changed(file, most);
  const auto header_of_other = other ? header_of(*other) : std::string();
  auto out = json_damaged(header, most - kLengthBytes, random, other ? &header_of_other : nullptr);
  std::uint64_t length = out.size();
  if (random() % 16 == 0) length = std::uint64_t{1} << random() % 64;
  out.insert(0, reinterpret_cast<const char*>(&length), kLengthBytes);
  return (out + file.substr(kLengthBytes + header.size())).substr(0, most);
}

// Damages one line of a file of JSON lines.
std::string lines_damaged(const std::string& text, std::size_t most, Random& random, const std::string* other) {
  const auto at = text.empty() ? 0 : random() % text.size();
  const auto before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  const auto begin = before == std::string::npos ? 0 : before + 1;
  const auto end = std::min(text.find('\n', begin), text.size());
  const auto line = text.substr(begin, end - begin);
  const auto other_line = other ? other->substr(0, other->find('\n')) : std::string();
  auto out = text.substr(0, begin) + json_damaged(line, most, random, other ? &other_line : nullptr) + text.substr(end);
  if (random() % 8 == 0) out += "\n" + line;
  return out.size() <= most ? out : text;
}

// Writes a valid llm.c header, which random changes of bytes would never find: magic number, version, number of tokens.
std::string tokens_damaged(const std::string& text, std::size_t most, Random& random) {
  constexpr std::size_t kHeaderBytes = 1024;
  auto out = with_bytes_changed(text, most);
  if (out.size() < 1 + kHeaderBytes || random() % 4 == 0) return out;
  const std::uint32_t tokens = static_cast<std::uint32_t>((out.size() - 1 - kHeaderBytes) / 2), magic = 20240520, version = 1;
  std::memcpy(out.data() + 1, &magic, sizeof magic);
  std::memcpy(out.data() + 5, &version, sizeof version);
  std::memcpy(out.data() + 9, &tokens, sizeof tokens);
  return out;
}

std::size_t damaged(std::uint8_t* to, std::string_view text, std::size_t most, std::uint32_t seed, const std::string* other) {
  Random random(seed);
  const std::string given(text);
  const auto out = is("safetensors")     ? safetensors_damaged(given, most, random, other)
                   : is("tokens")        ? tokens_damaged(given, most, random)
                   : is("conversations") ? lines_damaged(given, most, random, other)
                                         : json_damaged(given, most, random, other);
  std::memcpy(to, out.data(), std::min(out.size(), most));
  return std::min(out.size(), most);
}

std::string_view text_in(const std::uint8_t* data, std::size_t size) { return {reinterpret_cast<const char*>(data), size}; }

}  // namespace
}  // namespace terrace::test

using namespace terrace::test;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--reader=";  // libFuzzer ignores flags that begin with --
  for (int i = 1; i < *argc; ++i)
    if (const std::string_view word = (*argv)[i]; word.starts_with(kFlag))
      for (const auto& check : kReaderChecks)
        if (check.name == word.substr(kFlag.size())) reader = &check;
  if (reader != nullptr) return 0;
  std::fprintf(stderr, "give --reader= one of:");
  for (const auto& check : kReaderChecks) std::fprintf(stderr, " %s", std::string(check.name).c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reader->accepts(text_in(data, size));  // any exception is a finding
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return damaged(data, text_in(data, size), most, seed, nullptr);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* one, std::size_t size, const std::uint8_t* two,
                                                 std::size_t size_two, std::uint8_t* out, std::size_t most, unsigned seed) {
  const std::string other(text_in(two, size_two));
  return damaged(out, text_in(one, size), most, seed, &other);
}
