// Compares the corpus with the bytes of its files, and tests the order of sequences.
#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/data/corpus.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using Paths = std::vector<std::filesystem::path>;

template <class F>
void expect_error(F&& f, ErrorKind kind, const std::string& words) {
  EXPECT_THAT(test::error_of(kind, f), testing::HasSubstr(words));
}

// Sets the time at which the bytes were written.
void set_times(const std::filesystem::path& file, std::int64_t ns) {
  const timespec at{ns / 1'000'000'000, ns % 1'000'000'000}, both[2]{at, at};
  ASSERT_EQ(0, ::utimensat(AT_FDCWD, file.c_str(), both, 0));
}

std::string random_bytes(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(n, '\0');
  for (auto& b : bytes) b = static_cast<char>(random());
  return bytes;
}
std::vector<std::int32_t> tokens_of(const std::string& bytes) {
  std::vector<std::int32_t> tokens;
  for (const char b : bytes) tokens.push_back(static_cast<unsigned char>(b));
  return tokens;
}

TEST(Corpus, IsItsFilesEndToEnd) {
  const ScratchFolder folder;
  Corpus corpus = Corpus::open({folder.write("b", "zweite\n"), folder.write("empty", ""), folder.write("a", "erste\xff")});
  ASSERT_EQ(corpus.tokens(), 13U);
  std::vector<std::int32_t> all(13);
  corpus.read(0, all);
  EXPECT_EQ(all, tokens_of("zweite\nerste\xff"));
  corpus.read(13, {});
}

TEST(Corpus, ReadsTheTokensAfterTheHeaderOfLlmC) {
  const ScratchFolder folder;
  const auto file = [](std::uint32_t magic, std::uint32_t count, const std::vector<std::uint16_t>& ids) {
    std::vector<std::uint32_t> header(256);
    header[0] = magic;
    header[1] = 1;
    header[2] = count;
    return std::string(reinterpret_cast<const char*>(header.data()), 1024) +
           std::string(reinterpret_cast<const char*>(ids.data()), 2 * ids.size());
  };
  const Paths files{folder.write("a", file(20240520, 3, {1, 2, 3})), folder.write("b", file(20240520, 2, {4, 50256}))};
  const auto format = token_format("llm.c", 50257);
  auto corpus = Corpus::open(files, {.bytes = 2, .count = 2}, format);
  ASSERT_EQ(5U, corpus.tokens());
  std::vector<std::int32_t> all(5);
  corpus.read(0, all);
  EXPECT_EQ((std::vector<std::int32_t>{1, 2, 3, 4, 50256}), all);
  for (const auto& wrong : {file(20240521, 1, {1}), file(20240520, 2, {1}), std::string("short"), std::string()})
    expect_error([&] { Corpus::open({folder.write("c", wrong)}, {}, format); }, ErrorKind::refused, "not the header of llm.c");
}

// Token ids of two and of four bytes, least byte first, read through windows whose size is no multiple of them, across the ends
// of files.
TEST(Corpus, ReadsTokenIds) {
  const ScratchFolder folder;
  for (const auto& [name, width, vocabulary] : {std::tuple{"u16", 2U, 50257U}, {"u32", 4U, 128256U}}) {
    std::mt19937 random(width);
    std::vector<std::int32_t> expected;
    Paths files;
    for (const std::size_t tokens : {1U, 37U, 0U, 400U}) {
      std::string bytes;
      for (std::size_t i = 0; i < tokens; ++i) {
        const auto token = i == 0 ? vocabulary - 1 : static_cast<std::uint32_t>(random() % vocabulary);
        expected.push_back(static_cast<std::int32_t>(token));
        for (unsigned b = 0; b < width; ++b) bytes += static_cast<char>(token >> 8 * b & 0xffU);
      }
      files.push_back(folder.write(name + std::to_string(files.size()), bytes));
    }
    Corpus corpus = Corpus::open(files, {.bytes = 27, .count = 2}, token_format(name, vocabulary));
    ASSERT_EQ(corpus.tokens(), expected.size());
    for (int i = 0; i < 200; ++i) {
      const auto first = random() % expected.size(), count = random() % (expected.size() - first + 1);
      std::vector<std::int32_t> read(count);
      corpus.read(first, read);
      EXPECT_TRUE(std::equal(read.begin(), read.end(), expected.begin() + static_cast<std::ptrdiff_t>(first))) << first;
    }
    Corpus small = Corpus::open(files, {}, token_format(name, vocabulary - 1));
    std::vector<std::int32_t> one(1);
    expect_error([&] { small.read(1, one); }, ErrorKind::failed,
                 fmt::format("token 0: {} is not below the vocabulary", vocabulary - 1));
    expect_error([&] { Corpus::open({folder.write("odd", "abc")}, {}, token_format(name, vocabulary)); }, ErrorKind::refused,
                 "is not a multiple of");
  }
  expect_error([] { token_format("u64", 1); }, ErrorKind::refused, "unknown token format u64");
}

TEST(Corpus, ReadsAnyRangeThroughFewSmallWindows) {
  const ScratchFolder folder;
  const unsigned seed = 3;
  std::string expected;
  Paths files;
  for (const std::size_t bytes : {1U, 64U, 63U, 0U, 65U, 4000U, 128U, 5U}) {
    const auto part = random_bytes(bytes, seed + static_cast<unsigned>(bytes));
    files.push_back(folder.write(std::to_string(files.size()), part));
    expected += part;
  }
  const auto tokens = tokens_of(expected);
  Corpus corpus = Corpus::open(files, {.bytes = 64, .count = 3});
  ASSERT_EQ(corpus.tokens(), expected.size());
  std::mt19937 random(seed);
  for (int i = 0; i < 3000; ++i) {
    const std::size_t first = random() % tokens.size();
    std::vector<std::int32_t> got(random() % std::min<std::size_t>(400, tokens.size() - first + 1));
    corpus.read(first, got);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), tokens.begin() + static_cast<std::ptrdiff_t>(first)))
        << "seed " << seed << ", tokens " << first << " + " << got.size();
    ASSERT_LE(corpus.held_bytes(), 3U * 64U);
  }
}

TEST(Corpus, HoldsNoMoreThanItsWindowsOfALargeFile) {
  const ScratchFolder folder;
  const auto file = folder.write("large", "");
  std::filesystem::resize_file(file, std::uint64_t{3} << 30);  // sparse
  Corpus corpus = Corpus::open({file});
  EXPECT_EQ(corpus.tokens(), std::uint64_t{3} << 30);
  std::vector<std::int32_t> got(1000, -1);
  for (std::uint64_t i = 0; i < 40; ++i) corpus.read(i * 79'000'001, got);
  EXPECT_EQ(std::accumulate(got.begin(), got.end(), 0), 0);
  EXPECT_LE(corpus.held_bytes(), std::size_t{4} << 20);
}

TEST(Corpus, FillsTargetsOneTokenFurther) {
  const ScratchFolder folder;
  Corpus corpus = Corpus::open({folder.write("t", "abcdefghij")}, {.bytes = 3, .count = 1});
  std::vector<std::int32_t> tokens(6), targets(6);
  corpus.fill(std::vector<std::uint64_t>{6, 0}, 3, tokens, targets);
  EXPECT_EQ(tokens, tokens_of("ghiabc"));
  EXPECT_EQ(targets, tokens_of("hijbcd"));
  std::vector<std::int32_t> wrong(5);
  expect_error([&] { corpus.fill(std::vector<std::uint64_t>{6, 0}, 3, wrong, targets); }, ErrorKind::failed, "does not fit");
  expect_error([&] { corpus.fill(std::vector<std::uint64_t>{7, 0}, 3, tokens, targets); }, ErrorKind::failed, "10");
}

TEST(Corpus, RefusesWhatItCannotRead) {
  const ScratchFolder folder;
  const auto good = folder.write("good", "text");
  expect_error([&] { Corpus::open({good, folder / "absent"}); }, ErrorKind::refused, "absent cannot be read: No such file");
  expect_error([&] { Corpus::open({folder.path()}); }, ErrorKind::refused, "is not a regular file");
  expect_error([&] { Corpus::open({}); }, ErrorKind::refused, "the corpus is empty: 0 files");
  expect_error([&] { Corpus::open({folder.write("e", "")}); }, ErrorKind::refused, "the corpus is empty: 1 files");
  expect_error([&] { Corpus::open({good}, {.bytes = 0, .count = 1}); }, ErrorKind::refused, "window");
  if (::geteuid() != 0) {  // root may read everything
    const auto locked = folder.write("locked", "text");
    std::filesystem::permissions(locked, std::filesystem::perms::none);
    expect_error([&] { Corpus::open({locked}); }, ErrorKind::refused, "Permission denied");
  }
}

// Windows that were read before stay usable.
TEST(Corpus, SaysWhenAFileChangesOrGoes) {
  const ScratchFolder folder;
  const auto bytes = random_bytes(1000, 1);
  const auto file = folder.write("t", bytes);
  set_times(file, 1'000'000'000);
  Corpus corpus = Corpus::open({file}, {.bytes = 100, .count = 2});
  std::vector<std::int32_t> got(10);
  corpus.read(0, got);
  const auto expect_changed = [&](const std::string& words) {
    expect_error([&] { corpus.read(700, got); }, ErrorKind::failed, words);
    EXPECT_NO_THROW(corpus.read(0, got));
    folder.write("t", bytes);
    set_times(file, 1'000'000'000);
  };
  std::filesystem::resize_file(file, 550);
  expect_changed("became shorter while it was in use: it has 550 bytes, and had 1000");
  folder.write("t", bytes + "x");
  expect_changed("has changed while it was in use: it has 1001 bytes, and had 1000");
  set_times(file, 1'000'000'001);
  expect_changed("it was written to, or is another file of that name");
  folder.write("other", bytes);
  std::filesystem::rename(folder / "other", file);
  expect_changed("it was written to, or is another file of that name");
  std::filesystem::remove(file);
  expect_changed("could not be read at offset 0");
  corpus.read(700, got);
}

// The times then do not show a change, but the bytes have been read before.
TEST(Corpus, ComparesTheBytesOfAWindowThatIsReadAgain) {
  const ScratchFolder folder;
  auto bytes = random_bytes(1000, 1);
  const auto file = folder.write("t", bytes);
  set_times(file, 1'000'000'000);
  for (const std::size_t checked : {std::size_t{100}, std::size_t{3}}) {
    Corpus corpus = Corpus::open({file}, {.bytes = 100, .count = 1, .checked = checked});
    std::vector<std::int32_t> got(10);
    for (const std::uint64_t first : {0U, 900U, 300U}) corpus.read(first, got);
    ++bytes[999];
    folder.write("t", bytes);
    set_times(file, 1'000'000'000);
    if (checked == 3)  // windows 0, 9 and 3 share one place for a checksum
      EXPECT_NO_THROW(corpus.read(900, got));
    else
      expect_error([&] { corpus.read(900, got); }, ErrorKind::failed, "bytes 900 to 999 are not those that were read before");
    EXPECT_NO_THROW(corpus.read(300, got));
  }
}

TEST(SequencePlan, HoldsOutTheEnd) {
  const auto large = plan_sequences(100'000, 64);  // 5 % are 5,000 tokens
  EXPECT_EQ(large.evaluation_begin, 95'000U);
  EXPECT_EQ(large.training_sequences, (95'000U - 1) / 64);
  EXPECT_EQ(large.evaluation_sequences, (5'000U - 1) / 64);
  const auto small = plan_sequences(130, 64);  // 5 % would be less than one sequence
  EXPECT_EQ(small.evaluation_begin, 65U);
  EXPECT_EQ(small.training_sequences, 1U);
  EXPECT_EQ(small.evaluation_sequences, 1U);
  EXPECT_EQ(small.evaluation_start(0), 65U);
  EXPECT_EQ(small.sequence_start(1, 12345), 0U);
  expect_error([&] { (void)small.evaluation_start(1); }, ErrorKind::failed, "evaluation sequence 1");
}

TEST(SequencePlan, HoldsNothingOutIfItIsNotAskedTo) {
  EXPECT_EQ(4U, plan_sequences(257, 64, false).training_sequences);
  EXPECT_EQ(3U, plan_sequences(256, 64, false).training_sequences);
  EXPECT_EQ(0U, plan_sequences(257, 64, false).evaluation_sequences);
  EXPECT_EQ(1U, plan_sequences(65, 64, false).training_sequences);
  expect_error([] { plan_sequences(64, 64, false); }, ErrorKind::refused, "the corpus has 64 tokens, but 65 are needed");
}

TEST(SequencePlan, NoTrainingTokenIsHeldOutAndNoneIsPastTheEnd) {
  for (std::uint64_t tokens = 10; tokens < 700; ++tokens) {
    for (const std::uint64_t seq_len : {1U, 2U, 3U, 4U}) {
      const auto plan = plan_sequences(tokens, seq_len);
      ASSERT_GE(plan.training_sequences, 1U);
      ASSERT_GE(plan.evaluation_sequences, 1U);
      ASSERT_LE(plan.training_sequences * seq_len + 1, plan.evaluation_begin);
      ASSERT_LE(plan.evaluation_start(plan.evaluation_sequences - 1) + seq_len + 1, tokens);
    }
  }
}

TEST(SequencePlan, SaysHowManyTokensThereAreAndAreNeeded) {
  expect_error([] { plan_sequences(129, 64); }, ErrorKind::refused, "the corpus has 129 tokens, but 130 are needed");
  expect_error([] { plan_sequences(129, 0); }, ErrorKind::refused, "0 tokens");
  expect_error([] { plan_sequences(129, ~std::uint64_t{0}); }, ErrorKind::refused, "tokens");
}

TEST(SequencePlan, VisitsEverySequenceOnceAnEpoch) {
  const auto plan = plan_sequences(20'001, 8);
  std::vector<std::vector<std::uint64_t>> epochs;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::uint64_t> order;
    for (std::uint64_t i = 0; i < plan.training_sequences; ++i) {
      order.push_back(plan.sequence_start(42, epoch * plan.training_sequences + i));
      ASSERT_EQ(order.back() % 8, 0U);
    }
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), plan.training_sequences);
    EXPECT_LE(*std::ranges::max_element(order) + 8, plan.evaluation_begin - 1);
    epochs.push_back(order);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(plan.sequence_start(1, 0) + plan.sequence_start(1, 1), plan.sequence_start(2, 0) + plan.sequence_start(2, 1));
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (std::uint64_t count = 1; count <= 300; ++count) {
    std::set<std::uint64_t> image;
    for (std::uint64_t i = 0; i < count; ++i) image.insert(permuted(9, count, i, count));
    ASSERT_EQ(image.size(), count);
    ASSERT_EQ(*image.rbegin(), count - 1);
  }
  expect_error([] { permuted(1, 0, 5, 5); }, ErrorKind::failed, "outside");
}

TEST(Permutation, HoldsForLargeSizes) {
  for (const std::uint64_t count : {(std::uint64_t{1} << 33) + 12345, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    std::set<std::uint64_t> image;
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const auto to = permuted(7, 1, count - 1 - i * 3, count);
      ASSERT_LT(to, count);
      image.insert(to);
    }
    EXPECT_EQ(image.size(), 2000U);
  }
}

// Over many epochs each index lands in each place about as often: chi-squared with 63 degrees of freedom stays below 130 (the
// chance to exceed it is about one in a million), and the order is not near the identity.
TEST(Permutation, SpreadsEvenly) {
  constexpr std::uint64_t kCount = 64, kEpochs = 6400;
  for (const std::uint64_t index : {0U, 1U, 31U, 63U}) {
    std::vector<double> hits(kCount);
    for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) ++hits[permuted(5, epoch, index, kCount)];
    double chi = 0;
    for (const double h : hits) chi += (h - 100) * (h - 100) / 100;
    EXPECT_LT(chi, 130) << "index " << index;
  }
}

// A resumed run relies on this order, so it must never change by accident.
TEST(Permutation, KnownAnswers) {
  std::vector<std::uint64_t> order;
  for (std::uint64_t i = 0; i < 10; ++i) order.push_back(permuted(42, 0, i, 10));
  EXPECT_THAT(order, testing::ElementsAre(7, 8, 3, 5, 9, 2, 1, 0, 6, 4));
}

}  // namespace
}  // namespace terrace::lm
