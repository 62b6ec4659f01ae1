// Data files as streams: plain files and files packed by gzip and zstd; whole, cut, damaged, or with other bytes behind them.
#include <sys/resource.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/unpack/data_stream.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/packed.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using test::gzip_packed;
using test::zstd_packed;
using testing::HasSubstr;
using Pack = std::string (*)(std::string_view);

std::string by_zstd(std::string_view text) { return zstd_packed(text); }

class Streams : public testing::TestWithParam<std::pair<const char*, Pack>> {
 protected:
  static std::string text_of(std::size_t bytes) {  // neither uniform nor random throughout
    std::mt19937 random(3);
    std::string text;
    while (text.size() < bytes) text += random() % 3 == 0 ? std::to_string(random()) : "the same words\n";
    text.resize(bytes);
    return text;
  }
  [[nodiscard]] std::string packed(std::string_view text) const { return GetParam().second(text); }
  // Reads all of a file in windows of that many bytes.
  [[nodiscard]] std::string content(const std::string& bytes, std::size_t window = 100'000) const {
    DataStream in(folder_.write("file", bytes));
    std::string all;
    for (;;) {
      const auto some = in.peek(window).substr(0, window);
      if (some.empty()) break;
      EXPECT_EQ(all.size(), in.place());
      all += some;
      EXPECT_TRUE(in.skip(some.size()));
    }
    EXPECT_FALSE(in.skip(1));
    EXPECT_EQ(bytes.size(), in.file_place());
    return all;
  }
  void expect_refused(const std::string& bytes, const std::vector<std::string>& said) const {
    const auto error = test::thrown_by([&] { static_cast<void>(content(bytes)); });
    EXPECT_EQ(ErrorKind::refused, error.kind());
    EXPECT_THAT(error.what(), HasSubstr((folder_ / "file").string()));
    for (const auto& part : said) EXPECT_THAT(error.what(), HasSubstr(part));
  }
  ScratchFolder folder_;
};

TEST_P(Streams, AreTheContentWhateverIsReadAtOnce) {
  for (const std::size_t bytes : {0U, 1U, 3U, 4U, 5U, 262'143U, 262'144U, 1'000'000U}) {
    const auto text = text_of(bytes);
    for (const std::size_t window : {7U, 100'000U, 2'000'000U}) {
      if (window * 100'000 < bytes) continue;
      EXPECT_EQ(text, content(text, window)) << bytes;
      EXPECT_EQ(text, content(packed(text), window)) << bytes;
    }
  }
}

TEST_P(Streams, HaveSeveralParts) {
  const auto text = text_of(400'000);
  std::string all, parts;
  for (const std::size_t bytes : {1U, 0U, 300'000U, 2U, 400'000U, 0U}) {
    all += text.substr(0, bytes);
    parts += packed(text.substr(0, bytes));
  }
  EXPECT_EQ(all, content(parts));
}

TEST_P(Streams, GoToAPlace) {
  const auto text = text_of(900'000);
  for (const auto& bytes : {text, packed(text)}) {
    DataStream in(folder_.write("file", bytes));
    EXPECT_EQ(bytes != text, in.packed());
    EXPECT_TRUE(in.skip(0));
    EXPECT_TRUE(in.skip(3));
    EXPECT_EQ(text.substr(3, 9), in.peek(9).substr(0, 9));
    EXPECT_TRUE(in.skip(700'000));
    EXPECT_EQ(700'003U, in.place());
    EXPECT_EQ(text.substr(700'003), in.peek(1'000'000));
    EXPECT_TRUE(in.skip(text.size() - 700'003));
    EXPECT_TRUE(in.peek(1).empty());
    EXPECT_FALSE(in.skip(1));
  }
}

// Wherever a file is cut, the error says so, and the content is never taken for whole.
TEST_P(Streams, ThatAreCutAreRefused) {
  const auto whole = packed(text_of(3000));
  for (std::size_t bytes = 4; bytes < whole.size(); ++bytes)
    expect_refused(whole.substr(0, bytes), {"it is cut: the file ends at byte " + std::to_string(bytes) + ",", "restore"});
  const auto two = whole + whole;
  expect_refused(two.substr(0, two.size() - 1), {"it is cut"});
}

TEST_P(Streams, ThatAreDamagedAreRefused) {
  const auto text = text_of(3000);
  const auto whole = packed(text);
  int noticed = 0;
  for (std::size_t at = 4; at < whole.size(); ++at) {
    auto damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    try {
      EXPECT_EQ(text, content(damaged)) << "in what says nothing of the content, like a time, byte " << at;
    } catch (const Error& error) {
      EXPECT_EQ(ErrorKind::refused, error.kind());
      EXPECT_THAT(error.what(),
                  testing::AnyOf(HasSubstr("cannot be read on at byte"), HasSubstr("it is cut"), HasSubstr("that it has not")));
      ++noticed;
    }
  }
  EXPECT_GE(noticed, static_cast<int>(whole.size()) - 10);
}

TEST_P(Streams, WithSomethingBehindThemAreRefused) {
  const auto whole = packed(text_of(3000));
  for (const auto& behind : {std::string("x"), std::string("\n"), std::string("more text"), std::string(4, '\0')})
    expect_refused(whole + behind, {"at byte " + std::to_string(whole.size()) + ", stand " + std::to_string(behind.size()),
                                    "head -c " + std::to_string(whole.size())});
}

// 256 MiB of zeros: the memory that is held does not depend on the size.
TEST_P(Streams, UnpackInBoundedMemory) {
  constexpr std::uint64_t kZeros = std::uint64_t{256} << 20;
  {
    const auto part = packed(std::string(kZeros / 16, '\0'));
    std::string all;
    for (int i = 0; i < 16; ++i) all += part;
    folder_.write("file", all);
  }
  const auto most_kib = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before = most_kib();
  DataStream in(folder_ / "file");
  ASSERT_TRUE(in.packed());
  EXPECT_TRUE(in.skip(kZeros));
  EXPECT_FALSE(in.skip(1));
  EXPECT_LT(most_kib() - before, 32 << 10);
}

INSTANTIATE_TEST_SUITE_P(Packed, Streams,
                         testing::Values(std::pair<const char*, Pack>{"gzip", gzip_packed},
                                         std::pair<const char*, Pack>{"zstd", by_zstd}),
                         [](const auto& of) { return std::string(of.param.first); });

TEST(Stream, OfZstdPassesOverFramesWithoutContentAndNamesWindowsThatAreTooLarge) {
  const ScratchFolder folder;
  const std::string index("\x5e\x2a\x4d\x18\x03\0\0\0abc", 11);
  DataStream seekable(folder.write("file", zstd_packed("some text") + index));
  EXPECT_EQ("some text", seekable.peek(100));
  DataStream large(folder.write("large.zst", zstd_packed(std::string(1000, 'x'), 28)));
  EXPECT_THAT(test::thrown_by([&] { static_cast<void>(large.peek(1)); }).what(),
              testing::AllOf(HasSubstr("a window of more than 128 MiB\n  unpack it first: unzstd --long=31 -k "),
                             testing::EndsWith("large.zst")));
}

TEST(Stream, IsOfARegularFile) {
  const ScratchFolder folder;
  EXPECT_THROW(DataStream(folder / "absent"), Error);
  EXPECT_THROW(DataStream(folder.path()), Error);
}

TEST(Stream, TheNameOfTheContentHasNoEndingOfAPackedFile) {
  EXPECT_EQ("a/chat.jsonl", name_of_content("a/chat.jsonl.gz"));
  EXPECT_EQ("chat.jsonl", name_of_content("chat.jsonl.zst"));
  EXPECT_EQ("chat.gz.jsonl", name_of_content("chat.gz.jsonl"));
}

}  // namespace
}  // namespace terrace::lm
