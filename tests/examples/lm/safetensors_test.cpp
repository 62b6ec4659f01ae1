// One file written by hand after the specification, round trips, conversions, and broken files.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/weights/safetensors.h>
#include <terrace/examples/lm/weights/weight_files.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

template <class F>
void expect_error(F&& f, ErrorKind kind, const std::string& words) {
  EXPECT_THAT(test::error_of(kind, f), testing::HasSubstr(words));
}

std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> 8 * i & 0xff);
  return bytes + header + data;
}
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
std::vector<T> read_all(const SafetensorsReader& reader, const std::string& name) {
  std::vector<T> out(reader.find(name)->elements);
  reader.read(name, 0, std::span<T>(out));
  return out;
}
std::vector<bf16> bf16s(std::initializer_list<float> values) {
  std::vector<bf16> out;
  for (const float v : values) out.emplace_back(v);
  return out;
}

// Every byte is written out as in the format's description.
TEST(SafetensorsReader, ReadsAFileWrittenByHand) {
  const ScratchFolder folder;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("h":{"dtype":"F16","shape":[2],"data_offsets":[16,20]},"n":{"dtype":"I64","shape":[1],"data_offsets":[20,28]}})";
  const std::string data(
      "\x00\x00\x80\x3f"
      "\x00\x00\x00\xc0"
      "\x00\x00\x00\x00"
      "\xdb\x0f\x49\x40"  // 1, −2, 0, pi
      "\x00\x3c"
      "\x00\xc5"
      "\x07\x00\x00\x00\x00\x00\x00\x00",
      28);  // 1, −5; 7
  const SafetensorsReader reader(folder.write("hand.safetensors", file_of(header, data)));
  ASSERT_EQ(reader.entries().size(), 3U);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.find("w")->offset, 8 + header.size());
  EXPECT_THAT(reader.find("w")->shape, testing::ElementsAre(2, 2));
  EXPECT_EQ(read_all<float>(reader, "w"), (std::vector<float>{1, -2, 0, 3.14159274F}));
  EXPECT_EQ(read_all<double>(reader, "h"), (std::vector<double>{1, -5}));
  std::vector<float> middle(2);
  reader.read("w", 1, std::span(middle));
  EXPECT_EQ(middle, (std::vector<float>{-2, 0}));
  EXPECT_EQ(reader.find("absent"), nullptr);
  expect_error([&] { reader.read("n", 0, std::span(middle).first(1)); }, ErrorKind::refused,
               "\"n\" (I64 [1]) cannot be read as numbers");
  expect_error([&] { reader.read("absent", 0, std::span(middle)); }, ErrorKind::refused, "has no tensor \"absent\"");
  expect_error([&] { reader.read("w", 3, std::span(middle)); }, ErrorKind::refused,
               "elements 3..5 are not in tensor \"w\" (F32 [2, 2])");
  expect_error([&] { reader.read("w", ~std::uint64_t{0}, std::span(middle)); }, ErrorKind::refused, "are not in");
}

TEST(SafetensorsReader, AProgramReadsErrnoAndPath) {
  const ScratchFolder folder;
  const auto damaged = folder.write("damaged", file_of("{", ""));
  for (const auto& [file, kind, code] : {std::tuple{damaged, ErrorKind::corrupt, std::error_code()},
                                         {damaged.parent_path() / "absent", ErrorKind::refused, code_of_errno(ENOENT)}}) {
    const auto error = test::thrown_by([&] { const SafetensorsReader reader(file); });
    EXPECT_EQ(kind, error.kind());
    EXPECT_EQ(code, error.code());
    EXPECT_EQ(file.string(), error.path());
  }
}

TEST(SafetensorsReader, WidensEveryF16Exactly) {
  const ScratchFolder folder;
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const SafetensorsReader reader(
      folder.write("f16", file_of(R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", bytes_of(all))));
  const auto got = read_all<float>(reader, "h");
  const auto doubles = read_all<double>(reader, "h");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const int exponent = all[i] >> 10 & 31, fraction = all[i] & 1023;
    const double sign = (all[i] & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(got[i]), fraction != 0);
      ASSERT_TRUE(fraction != 0 || got[i] == sign * std::numeric_limits<double>::infinity());
      continue;
    }
    const double expected = sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
    ASSERT_EQ(got[i], expected) << i;
    ASSERT_EQ(std::signbit(got[i]), std::signbit(expected)) << i;
    ASSERT_EQ(doubles[i], expected) << i;
  }
}

TEST(SafetensorsReader, RoundsOnceToNearestEven) {
  const ScratchFolder folder;
  // A conversion through fp32 would first give the tie 1 + 2^-8, and then the even 1.
  const std::vector<double> values{1 + 0x1p-8 + 0x1p-40,
                                   1 + 0x1p-8,
                                   1 + 0x1p-8 - 0x1p-40,
                                   -(1 + 0x1p-8 + 0x1p-40),
                                   1e300,
                                   0x1p-1074,
                                   std::numeric_limits<double>::quiet_NaN(),
                                   0.1};
  const SafetensorsReader reader(
      folder.write("f64", file_of(R"({"d":{"dtype":"F64","shape":[8],"data_offsets":[0,64]}})", bytes_of(values))));
  const auto narrow = read_all<bf16>(reader, "d");
  const std::uint16_t expected[] = {0x3f81, 0x3f80, 0x3f80, 0xbf81, 0x7f80, 0x0000, 0x7fc0, 0x3dcd};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(narrow[i].bits, expected[i]) << i;
  const auto single = read_all<float>(reader, "d");
  EXPECT_EQ(single[7], 0.1F);
  EXPECT_EQ(read_all<double>(reader, "d")[7], 0.1);
}

TEST(Safetensors, ComesBackInRangesOfAnySizeAndType) {
  const ScratchFolder folder;
  const unsigned seed = 17;
  std::mt19937 random(seed);
  constexpr std::size_t n = 70'001;  // several conversion buffers, and one more
  std::vector<float> w(n);
  std::vector<double> d(n);
  for (std::size_t i = 0; i < n; ++i) {
    w[i] = std::ldexp(static_cast<float>(random()), -40);
    d[i] = std::ldexp(static_cast<double>(random()) * random(), -70);
  }
  const auto file = folder / "weights.safetensors";
  {
    SafetensorsWriter writer(file, {{"b", DType::bf16, {n}},
                                    {"w", DType::fp32, {1, n}},
                                    {"d", DType::fp64, {n, 1}},
                                    {"scalar", DType::fp32, {}},
                                    {"none", DType::fp32, {0, 7}},
                                    {"narrowed", DType::fp32, {n}}});
    std::vector<std::size_t> cuts{0, n};
    for (int i = 0; i < 9; ++i) cuts.push_back(random() % n);
    std::ranges::sort(cuts);
    for (std::size_t c = cuts.size() - 1; c > 0; --c) {  // from the back
      const std::size_t first = cuts[c - 1], count = cuts[c] - first;
      writer.write("w", first, std::span<const float>(w).subspan(first, count));
      writer.write("b", first, std::span<const float>(w).subspan(first, count));
      writer.write("d", first, std::span<const double>(d).subspan(first, count));
      writer.write("narrowed", first, std::span<const double>(d).subspan(first, count));
    }
    writer.write("scalar", 0, std::span<const bf16>(bf16s({3})));
    EXPECT_FALSE(std::filesystem::exists(file)) << "the file may not appear before it is whole";
    writer.finish();
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "weights.safetensors.tmp"));
  const SafetensorsReader reader(file);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  for (const auto& e : reader.entries()) EXPECT_EQ(e.offset % size_of(e.type), 0U) << e.name;
  EXPECT_EQ(read_all<float>(reader, "w"), w);
  EXPECT_EQ(read_all<double>(reader, "d"), d);
  EXPECT_EQ(read_all<double>(reader, "w"), std::vector<double>(w.begin(), w.end()));
  EXPECT_EQ(read_all<float>(reader, "scalar"), std::vector<float>{3});
  EXPECT_TRUE(read_all<float>(reader, "none").empty());
  const auto b = read_all<bf16>(reader, "b"), b_of_w = read_all<bf16>(reader, "w");
  const auto narrowed = read_all<float>(reader, "narrowed");
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(b[i].bits, bf16(w[i]).bits) << "seed " << seed << ", element " << i;
    ASSERT_EQ(b_of_w[i].bits, b[i].bits) << i;
    ASSERT_EQ(narrowed[i], static_cast<float>(d[i])) << i;
  }
  for (int i = 0; i < 200; ++i) {
    const std::size_t first = random() % n;
    std::vector<float> part(random() % (n - first));
    reader.read("d", first, std::span(part));
    for (std::size_t k = 0; k < part.size(); ++k) ASSERT_EQ(part[k], static_cast<float>(d[first + k])) << "seed " << seed;
  }
}

// The file is the same whether values are copied or filled in without a copy.
TEST(SafetensorsWriter, FillsTensorsInPlace) {
  constexpr std::size_t n = 700'001;  // several blocks, with edges in the middle of pages
  const ScratchFolder folder;
  const std::vector<SafetensorsDeclaration> tensors{
      {"b", DType::bf16, {n}}, {"w", DType::fp32, {n}}, {"d", DType::fp64, {n}}, {"none", DType::fp32, {0, 7}}};
  std::vector<double> d(n);
  std::iota(d.begin(), d.end(), -1000.0);
  const std::vector<float> w(d.begin(), d.end());
  const std::vector<bf16> b(w.begin(), w.end());
  SafetensorsWriter copied(folder / "copied", tensors), filled(folder / "filled", tensors);
  copied.write("b", 0, std::span<const bf16>(b));
  copied.write("w", 0, std::span<const float>(w));
  copied.write("d", 0, std::span<const double>(d));
  const auto fill_from = [&]<class T>(const std::string& name, const std::vector<T>& values) {
    std::uint64_t next = 0;
    filled.write(name, [&](std::uint64_t first, TensorView piece) {
      ASSERT_EQ(next, first) << name;
      next += static_cast<std::uint64_t>(piece.elements());
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), piece.elements(), piece.as<T>());
    });
    EXPECT_EQ(values.size(), next) << name;
  };
  fill_from("w", w);  // not in the order of the file
  fill_from("b", b);
  fill_from("d", d);
  filled.write("none", [](std::uint64_t, TensorView) { ADD_FAILURE() << "it has no elements"; });
  expect_error([&] { filled.write("b", [](std::uint64_t, TensorView) {}); }, ErrorKind::failed, "written twice");
  expect_error([&] { filled.write("x", [](std::uint64_t, TensorView) {}); }, ErrorKind::refused, "was not declared");
  copied.finish();
  filled.finish();
  EXPECT_TRUE(folder.read("copied") == folder.read("filled"));
}

TEST(SafetensorsWriter, WritesExactlyTheFormat) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "x", {{"h", DType::bf16, {1}}, {"w", DType::fp32, {1, 2}}});
  writer.write("w", 0, std::span<const float>(std::vector<float>{1, -2}));
  writer.write("h", 0, std::span<const float>(std::vector<float>{1}));
  writer.finish();
  std::string header = R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                       R"("h":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(folder.read("x"), file_of(header, std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0\x80\x3f", 10)));
}

TEST(SafetensorsWriter, LeavesTheOldFileUntilItIsFinished) {
  const ScratchFolder folder;
  folder.write("x", "old");
  const std::vector<float> one{1};
  {
    SafetensorsWriter writer(folder / "x", {{"a", DType::fp32, {2}}});
    writer.write("a", 0, std::span<const float>(one));
    expect_error([&] { writer.finish(); }, ErrorKind::failed, "\"a\" (F32 [2]) was not written whole");
  }
  EXPECT_EQ(folder.read("x"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "x.tmp"));
}

TEST(SafetensorsWriter, RefusesWrongUse) {
  const ScratchFolder folder;
  const auto declare = [&](const std::vector<SafetensorsDeclaration>& tensors) {
    return [&folder, tensors] { SafetensorsWriter(folder / "x", tensors); };
  };
  expect_error(declare({{"a", DType::i32, {1}}}), ErrorKind::refused, "only fp32, bf16 and fp64");
  expect_error(declare({{"a", DType::fp32, {1}}, {"a", DType::bf16, {1}}}), ErrorKind::refused, "declared twice");
  expect_error(declare({{"a", DType::fp32, {~std::uint64_t{0}, 3}}}), ErrorKind::refused, "overflows");
  expect_error(declare({{"a", DType::fp32, {~std::uint64_t{0} / 8}}}), ErrorKind::refused, "too large");
  expect_error(declare({{"__metadata__", DType::fp32, {1}}}), ErrorKind::refused, "reserves");
  expect_error(declare({{"\xff", DType::fp32, {1}}}), ErrorKind::refused, "its name is not UTF-8");
  expect_error([&] { SafetensorsWriter(folder / "no" / "x", {}); }, ErrorKind::refused, "cannot be created");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));

  SafetensorsWriter writer(folder / "x", {{"a", DType::fp32, {8}}});
  const std::vector<float> three{1, 2, 3};
  const std::span<const float> range(three);
  writer.write("a", 3, range);
  for (const std::uint64_t first : {1U, 2U, 3U, 4U, 5U}) {
    expect_error([&] { writer.write("a", first, range); }, ErrorKind::failed, "written twice");
  }
  expect_error([&] { writer.write("a", 6, range); }, ErrorKind::refused, "elements 6..9 are not in");
  expect_error([&] { writer.write("b", 0, range); }, ErrorKind::refused, "\"b\" was not declared");
  writer.write("a", 0, range);
  writer.write("a", 6, range.first(2));
  writer.finish();
  expect_error([&] { writer.finish(); }, ErrorKind::failed, "is finished");
  expect_error([&] { writer.write("a", 0, range); }, ErrorKind::failed, "is finished");
}

TEST(SafetensorsReader, RefusesBrokenFiles) {
  const ScratchFolder folder;
  const auto open = [&](const std::string& bytes) {
    return [&folder, bytes] { SafetensorsReader(folder.write("broken", bytes)); };
  };
  expect_error([&] { SafetensorsReader(folder / "absent"); }, ErrorKind::refused, "absent cannot be opened: No such file");
  expect_error([&] { SafetensorsReader reader(folder.path()); }, ErrorKind::refused, "regular file");
  expect_error(open(""), ErrorKind::corrupt, "it has 0 bytes");
  expect_error(open("1234567"), ErrorKind::corrupt, "it has 7 bytes");
  expect_error(open("\xff\xff\xff\xff\xff\xff\xff\xff{}"), ErrorKind::corrupt, "100000000 are allowed");
  expect_error(open(std::string("\x03\0\0\0\0\0\0\0{}", 10)), ErrorKind::corrupt, "would have 3 bytes, the file has 10");
  expect_error(open(std::string("\0\0\0\0\0\0\0\0", 8)), ErrorKind::corrupt, "does not begin");
  const auto whole = file_of(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", std::string(16, 'x'));
  expect_error(open(whole.substr(0, whole.size() - 1)), ErrorKind::corrupt, "cut short");
}

TEST(SafetensorsReader, SaysWhereAFileWasCutAfterItWasOpened) {
  const ScratchFolder folder;
  const auto header = std::string(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})");
  const auto file = folder.write("a", file_of(header, std::string(16, 'x')));
  const SafetensorsReader reader(file);
  std::filesystem::resize_file(file, 8 + header.size() + 10);
  std::vector<float> out(4);
  expect_error([&] { reader.read("a", 0, std::span(out)); }, ErrorKind::corrupt,
               "tensor \"a\" (F32 [4]) is cut short: the file ends at offset " + std::to_string(8 + header.size() + 10));
}

// The numbers and the errors are the same whether a file is read ahead or not.
TEST(WeightFiles, AnnouncedRangesHoldTheSameNumbers) {
  const ScratchFolder folder;
  constexpr unsigned kSeed = 5;
  std::mt19937 random(kSeed);
  constexpr std::size_t n = 2'100'003;
  std::vector<float> numbers(n);
  for (auto& x : numbers) x = std::ldexp(static_cast<float>(random()), -32);
  const auto file = folder / "model.safetensors";
  const std::vector<std::string> names{"wide", "narrow", "double"};
  {
    SafetensorsWriter writer(file, {{"wide", DType::fp32, {n}}, {"narrow", DType::bf16, {n}}, {"double", DType::fp64, {n}}});
    for (const auto& name : names) writer.write(name, 0, std::span<const float>(numbers));
    writer.finish();
  }
  const SafetensorsReader alone(file);
  const WeightFiles ahead(file);
  for (const auto& name : names) ahead.announce(name, 3, n - 3);
  std::vector<float> expected, found;
  for (const auto& name : names)
    for (std::size_t first = 3; first < n;) {
      const auto count = std::min<std::size_t>(n - first, 1 + random() % 400'000);
      expected.resize(count);
      found.resize(count);
      alone.read(name, first, std::span(expected));
      ahead.read(name, first, std::span(found));
      ASSERT_EQ(0, std::memcmp(expected.data(), found.data(), count * sizeof(float)))
          << name << " from " << first << ", seed " << kSeed;
      first += count;
    }
  const auto end = alone.entries().back().offset;
  std::filesystem::resize_file(file, end + 1000);
  const auto& last = alone.entries().back().name;
  ahead.announce(last, 0, n);
  found.resize(n);
  expect_error([&] { ahead.read(last, 0, std::span(found)); }, ErrorKind::corrupt, "is cut short");
}

// Whatever bytes are changed, the reader either refuses with its own error or reads tensors that lie in the file.
TEST(SafetensorsReader, SurvivesFlippedBytes) {
  const ScratchFolder folder;
  {
    SafetensorsWriter writer(folder / "good", {{"wte", DType::fp32, {3, 5}}, {"h", DType::bf16, {7}}, {"d", DType::fp64, {2}}});
    const std::vector<float> values(15, 1.5F);
    writer.write("wte", 0, std::span<const float>(values));
    writer.write("h", 0, std::span<const float>(values).first(7));
    writer.write("d", 0, std::span<const float>(values).first(2));
    writer.finish();
  }
  const std::string good = folder.read("good");
  const unsigned seed = 99;
  std::mt19937 random(seed);
  int refused = 0;
  for (int run = 0; run < 2000; ++run) {
    std::string bytes = good;
    const int flips = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < flips; ++i) {
      const std::size_t at = random() % bytes.size();
      bytes[at] = random() % 2 == 0 ? static_cast<char>(bytes[at] ^ (1 << random() % 8)) : static_cast<char>(random());
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    if (random() % 8 == 0) bytes += '\0';
    std::filesystem::remove(folder / "bad");  // truncating a file in place makes some file systems flush it
    try {
      const SafetensorsReader reader(folder.write("bad", bytes));
      for (const auto& e : reader.entries()) {
        ASSERT_LE(e.offset + e.elements * size_of(e.type), bytes.size()) << "seed " << seed << ", run " << run;
        std::vector<float> out(e.elements);
        reader.read(e.name, 0, std::span(out));
      }
    } catch (const Error& e) {
      ++refused;
      ASSERT_THAT(e.what(), testing::HasSubstr("bad")) << "seed " << seed << ", run " << run;
    } catch (const std::exception& e) {
      FAIL() << "seed " << seed << ", run " << run << ": " << e.what();
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace terrace::lm
