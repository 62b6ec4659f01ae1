// Files of token ids: their bytes in each format, for each number of threads, and after interruptions.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/tokenize_job.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>
#include <terrace/examples/lm/tokenizer/words/piece_source.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace {
std::size_t most_read_bytes = ~std::size_t{0};
}  // namespace

// Replaces the system's call and asks it for less.
extern "C" ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  return ::syscall(SYS_pread64, file, to, std::min(bytes, most_read_bytes), offset);
}

namespace terrace::lm {
namespace {

constexpr TokenId kSeparator = 258;

Tokenizer small_tokenizer() {
  nlohmann::ordered_json model{{"vocab", nlohmann::ordered_json::object()}, {"merges", {"Ġ a", "b c"}}};
  for (unsigned byte = 0; byte < 256; ++byte) model["vocab"][letters_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  model["vocab"]["Ġa"] = 256;
  model["vocab"]["bc"] = 257;
  const nlohmann::ordered_json json{{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}, {"model", model}};
  return Tokenizer(TokenizerFile::parse(json.dump()));
}

std::string read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

class Job : public testing::Test {
 protected:
  Job() {
    std::mt19937 random(1);
    for (int i = 0; i < 3; ++i) {
      std::string text;
      for (auto words = random() % 3000; words > 0; --words)
        text += random() % 9 == 0 ? "\n" : random() % 2 == 0 ? " abc" : " a";
      texts_.push_back(text);
      inputs_.push_back(folder_.write("text" + std::to_string(i), text));
    }
    std::string lines;
    for (int i = 0; i < 500; ++i) {
      texts_.push_back(std::string(random() % 50, 'b') + " é \"a\" c");
      lines += nlohmann::json{{"id", i}, {"text", texts_.back()}}.dump() + (i % 7 == 0 ? "\r\n\n" : "\n");
    }
    inputs_.push_back(folder_.write("more.jsonl", lines));
    texts_.push_back("");
    inputs_.push_back(folder_.write("empty", ""));
  }
  [[nodiscard]] TokenizeSettings settings(const std::string& out, TokenFile kind) const {
    TokenizeSettings s;
    s.inputs = inputs_;
    s.out = folder_ / out;
    s.kind = kind;
    s.separator = kSeparator;
    s.separator_first = kind == TokenFile::llm_c;
    s.piece_bytes = 1000;
    return s;
  }
  void write(const std::string& out, TokenFile kind, int threads = 2) const {
    ThreadPool pool(threads);
    TokenizeJob job(settings(out, kind), tokenizer_, pool);
    while (job.step()) {
    }
    job.finish();
  }
  // The ids of all documents, each encoded whole.
  [[nodiscard]] std::vector<std::vector<TokenId>> documents(bool separator_first) const {
    std::vector<std::vector<TokenId>> all;
    for (const auto& text : texts_) {
      auto ids = tokenizer_.encode(text);
      ids.insert(separator_first ? ids.begin() : ids.end(), kSeparator);
      all.push_back(std::move(ids));
    }
    return all;
  }
  template <class T>
  [[nodiscard]] std::string expected(bool separator_first) const {
    std::vector<T> ids;
    for (const auto& document : documents(separator_first)) ids.insert(ids.end(), document.begin(), document.end());
    return bytes_of(ids);
  }

  ScratchFolder folder_;
  Tokenizer tokenizer_ = small_tokenizer();
  std::vector<std::filesystem::path> inputs_;
  std::vector<std::string> texts_;
};

TEST_F(Job, IdsAreThoseOfWholeDocumentsForEachNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    write("a", TokenFile::u16, threads);
    EXPECT_EQ(expected<std::uint16_t>(false), read(folder_ / "a"));
    write("b", TokenFile::u32, threads);
    EXPECT_EQ(expected<std::uint32_t>(false), read(folder_ / "b"));
  }
}

// Texts that never have a letter, a space and a letter in a row are read in pieces, too.
TEST_F(Job, TextsWithoutSpacesBetweenWordsAreReadInPieces) {
  std::mt19937 random(2);
  for (const auto& [kind, parts] : {std::pair<std::string, std::vector<std::string>>{"chinese", {"中", "文", "字", "，", "。"}},
                                    {"japanese", {"こ", "カ", "ー", "字", "、", "\u3099"}},
                                    {"korean", {"한", "글", "\n"}},
                                    {"one word a line", {"bc", "a", "\n"}},
                                    {"csv", {"1", "23", ",", "\n"}}}) {
    std::string text;
    while (text.size() < 20000) text += parts[random() % parts.size()];
    const auto file = folder_.write("text", text);
    auto s = settings("ids", TokenFile::u16);
    s.inputs = {file};
    PieceSource source({file}, s.piece_bytes,
                       [&](std::string_view of, std::size_t most) { return tokenizer_.cut_before(of, most); });
    std::size_t longest = 0, pieces = 0;
    InputPlace place;
    for (; const auto piece = source.next(place); ++pieces) longest = std::max(longest, piece->bytes.size());
    EXPECT_LE(longest, s.piece_bytes) << kind;
    EXPECT_GE(pieces, 20U) << kind;
    ThreadPool pool(2);
    TokenizeJob job(s, tokenizer_, pool);
    while (job.step()) continue;
    job.finish();
    auto whole = tokenizer_.encode(text);
    whole.push_back(kSeparator);
    EXPECT_EQ(bytes_of(std::vector<std::uint16_t>(whole.begin(), whole.end())), read(folder_ / "ids")) << kind;
  }
}

// The system may read less than requested, for example after a signal and on some network file systems.
TEST_F(Job, ShortReadsGoOn) {
  write("whole", TokenFile::megatron);
  most_read_bytes = 7;
  write("short", TokenFile::megatron);
  most_read_bytes = ~std::size_t{0};
  for (const auto* const end : {".bin", ".idx"})
    EXPECT_EQ(read(folder_ / (std::string("whole") + end)), read(folder_ / (std::string("short") + end))) << end;
}

TEST_F(Job, AnInputThatChangesMeanwhileEndsIt) {
  ThreadPool pool(1);
  auto s = settings("changed", TokenFile::u16);
  const std::string text(50000, 'a');
  s.inputs = {folder_.write("text", text), folder_.write("more", text)};
  for (const auto* const changed : {"text", "more"}) {
    TokenizeJob job(s, tokenizer_, pool);
    folder_.write(changed, text + "bc");
    EXPECT_THAT(test::error_of(ErrorKind::failed,
                               [&] {
                                 while (job.step()) continue;
                               }),
                testing::HasSubstr(std::string(changed) + " has changed since the command began"))
        << changed;
    folder_.write(changed, text);
  }
}

TEST_F(Job, HasTheHeaderOfLlmC) {
  write("c", TokenFile::llm_c);
  const auto ids = expected<std::uint16_t>(true);
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<std::int32_t>(ids.size() / 2);
  EXPECT_EQ(bytes_of(header) + ids, read(folder_ / "c"));
}

TEST_F(Job, HasTheIndexOfMegatron) {
  write("m", TokenFile::megatron);
  EXPECT_EQ(expected<std::uint16_t>(false), read(folder_ / "m.bin"));
  std::vector<std::int32_t> sizes;
  std::vector<std::int64_t> begins, numbers;
  std::int64_t begin = 0;
  for (const auto& document : documents(false)) {
    numbers.push_back(static_cast<std::int64_t>(sizes.size()));
    sizes.push_back(static_cast<std::int32_t>(document.size()));
    begins.push_back(begin);
    begin += 2 * static_cast<std::int64_t>(document.size());
  }
  numbers.push_back(static_cast<std::int64_t>(sizes.size()));
  const auto index =
      std::string("MMIDIDX\0\0", 9) + bytes_of<std::int64_t>({1}) + '\x08' +
      bytes_of<std::int64_t>({static_cast<std::int64_t>(sizes.size()), static_cast<std::int64_t>(numbers.size())}) +
      bytes_of(sizes) + bytes_of(begins) + bytes_of(numbers);
  EXPECT_EQ(index, read(folder_ / "m.idx"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "m.sizes.partial"));
}

// A killed job may have written more than it recorded.
TEST_F(Job, GoesOnWhereItWasRecordedWithTheSameBytes) {
  for (const auto kind : {TokenFile::u16, TokenFile::llm_c, TokenFile::megatron}) {
    const std::string end = kind == TokenFile::megatron ? ".bin" : "";
    write("whole", kind);
    int jobs = 0;
    for (bool done = false; !done; ++jobs) {
      ThreadPool pool(1);
      TokenizeJob job(settings("parts", kind), tokenizer_, pool);
      done = !job.step();
      if (done) {
        job.finish();
      } else {
        job.record();
        job.step();  // this step is lost
      }
    }
    EXPECT_GT(jobs, 5);
    EXPECT_EQ(read(folder_ / ("whole" + end)), read(folder_ / ("parts" + end)));
    EXPECT_EQ(read(folder_ / "whole.idx"), read(folder_ / "parts.idx"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "parts.progress"));
  }
}

TEST_F(Job, RecordsOfOtherJobsAndDamagedOnesAreRefused) {
  ThreadPool pool(1);
  const auto first = settings("x", TokenFile::u16);
  {
    TokenizeJob job(first, tokenizer_, pool);
    job.step();
    job.record();
  }
  auto other = first;
  other.separator.reset();
  const auto kind_of = [&](const TokenizeSettings& of) -> std::optional<ErrorKind> {
    try {
      TokenizeJob(of, tokenizer_, pool);
      return std::nullopt;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("progress"));
      return error.kind();
    }
  };
  EXPECT_EQ(ErrorKind::refused, kind_of(other));
  EXPECT_EQ(std::nullopt, kind_of(first));
  folder_.write("x.partial", "");
  EXPECT_EQ(ErrorKind::corrupt, kind_of(first));
  folder_.write("x.progress", "{}");
  EXPECT_EQ(ErrorKind::corrupt, kind_of(first));
}

// The content before the mended line need not be read again, but must be the same.
TEST_F(Job, GoesOnFromAMendedFile) {
  ThreadPool pool(1);
  std::string good, bad;
  for (int i = 0; i < 400; ++i) {
    const auto line = R"({"text":"line )" + std::to_string(i) + "\"}\n";
    good += line;
    bad += i == 390 ? "{broken\n" : line;
  }
  auto s = settings("mended", TokenFile::u16);
  s.piece_bytes = 256;
  s.inputs = {folder_.write("lines.jsonl", good)};
  auto whole = s;
  whole.out = folder_ / "whole of lines";
  TokenizeJob job(whole, tokenizer_, pool);
  while (job.step())
    ;
  job.finish();

  const auto until_error = [&] {
    TokenizeJob broken(s, tokenizer_, pool);
    EXPECT_THROW(while (broken.step()){}, Error);
    broken.record();
    return broken.progress().bytes;
  };
  folder_.write("lines.jsonl", bad);
  const auto done = until_error();
  EXPECT_GT(done, bad.size() / 2);
  EXPECT_LT(done, bad.size());
  EXPECT_EQ(done, until_error()) << "it is still broken";
  auto other = good;
  other[10] = 'L';
  folder_.write("lines.jsonl", other);
  EXPECT_THROW(TokenizeJob(s, tokenizer_, pool), Error) << "the beginning is another one";
  folder_.write("lines.jsonl", good);
  TokenizeJob rest(s, tokenizer_, pool);
  EXPECT_EQ(done, rest.progress().bytes);
  while (rest.step())
    ;
  rest.finish();
  EXPECT_EQ(read(folder_ / "whole of lines"), read(folder_ / "mended"));
}

TEST_F(Job, ALineThatIsNoObjectIsNamedWithItsPlace) {
  ThreadPool pool(1);
  auto s = settings("y", TokenFile::u16);
  s.inputs = {folder_.write("bad.jsonl", "{\"text\":\"a\"}\n{\"other\":1}\n")};
  TokenizeJob job(s, tokenizer_, pool);
  EXPECT_THAT(test::refusal_of([&] { job.step(); }),
              testing::HasSubstr("bad.jsonl, the line at byte 13: it is no object with a text \"text\""));
}

}  // namespace
}  // namespace terrace::lm
