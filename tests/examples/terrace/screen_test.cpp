// Columns are fixed and never wider than the terminal; without a terminal there are no escape codes; with --json only JSON is
// printed.
#include <terrace/examples/terrace/run/screen.h>

#include <cmath>
#include <cstdlib>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <terrace/examples/terrace/base/text_columns.h>

namespace terrace::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

StepMetrics sample(std::uint64_t step) {
  StepMetrics m;
  m.step = step, m.loss = 5.4321, m.grad_norm = 1.25, m.lr = 3e-4, m.tokens = 2048, m.step_time_s = 2, m.tokens_per_s = 1024;
  m.read_bytes = 3 << 20, m.write_bytes = 1 << 20, m.stall_s = 0.5;
  return m;
}

// Everything that a screen wrote until it was destroyed.
template <class F>
std::string shown(ScreenOptions options, F use) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const memory = open_memstream(&text, &size);
  options.out = memory;
  {
    Screen screen(options);
    use(screen);
  }
  static_cast<void>(std::fclose(memory));
  std::string out(text, size);
  std::free(text);
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(Screen, PlainLinesHaveFixedColumnsAndNoEscapes) {
  const auto text = shown({.last_step = 100}, [](Screen& screen) {
    for (std::uint64_t s = 1; s <= 45; ++s) screen.step(sample(s));
    screen.finish("0123456789abcdef", {});
  });
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  const auto lines = lines_of(text);
  ASSERT_EQ(lines.size(), 1U + 45U + 1U);  // one header where nothing scrolls
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) EXPECT_EQ(lines[i].size(), lines[0].size()) << lines[i];
  EXPECT_THAT(lines[1], HasSubstr("1/100"));
  EXPECT_THAT(lines[1], HasSubstr("5.43210"));
  EXPECT_THAT(lines[1], HasSubstr("25.0%"));
  EXPECT_THAT(lines[1], HasSubstr("3.00 MiB"));
  EXPECT_THAT(lines[1], HasSubstr("3m18s"));
  EXPECT_EQ(lines.back(), "weights xxh64 0123456789abcdef");
}

TEST(Screen, AStepWithoutTargetsSaysSo) {
  auto m = sample(1);
  m.loss.reset();
  const auto lines = lines_of(shown({.last_step = 100}, [&](Screen& screen) { screen.step(m); }));
  ASSERT_EQ(2U, lines.size());
  EXPECT_EQ(lines[0].size(), lines[1].size());
  EXPECT_THAT(lines[1], HasSubstr("  no targets"));
}

TEST(Screen, ATerminalGetsHeadersAndABarThatIsErased) {
  const auto text = shown({.terminal = true, .width = 200, .last_step = 100}, [](Screen& screen) {
    for (std::uint64_t s = 1; s <= 45; ++s) screen.step(sample(s));
  });
  std::string erasure(102, ' ');  // the bar is at most 100 columns wide
  erasure.front() = erasure.back() = '\r';
  std::size_t headers = 0, erased = 0, bars = 0;
  for (auto at = text.find("grad norm"); at != std::string::npos; at = text.find("grad norm", at + 1)) ++headers;
  for (auto at = text.find(erasure); at != std::string::npos; at = text.find(erasure, at + 1)) ++erased;
  for (auto at = text.find(" left"); at != std::string::npos; at = text.find(" left", at + 1))
    bars += text.compare(at, 7, " left\r ") == 0;
  EXPECT_EQ(headers, 3U);
  EXPECT_EQ(erased, 45U);
  EXPECT_EQ(bars, 45U);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));  // no escape codes unless asked
  EXPECT_TRUE(text.ends_with(erasure));
}

TEST(Screen, LinesNeverExceedTheTerminal) {
  auto step = sample(1);
  step.eval_loss = 4.5;
  step.held_out = {{"a-source-with-a-long-name.bin", 1.25e-7}};
  for (const std::uint64_t last : {4ULL, 100ULL, 1'000'000'000'000ULL})
    for (int width = 12; width <= 130; ++width) {
      const auto text =
          shown({.terminal = false, .width = width, .last_step = last}, [&](Screen& screen) { screen.step(step); });
      for (const auto& line : lines_of(text)) EXPECT_LE(columns_of(line), static_cast<std::size_t>(width)) << line;
    }
  EXPECT_EQ(lines_of(shown({.width = 20, .last_step = 100}, [&](Screen& screen) { screen.step(step); })),
            (std::vector<std::string>{"step            loss", "1/100        5.43210", "held-out lo… 4.50000",
                                      "  of a-so… 1.250e-07"}));
  EXPECT_THAT(shown({.width = 20, .last_step = 1'000'000'000'000}, [&](Screen& screen) { screen.step(step); }),
              HasSubstr("\n1            5.43210\n"));
}

TEST(Screen, ExtremeValuesKeepTheColumns) {
  auto wild = sample(99999);
  wild.loss = NAN, wild.grad_norm = INFINITY, wild.lr = 1e-12, wild.step_time_s = 123456, wild.tokens_per_s = 1e9;
  wild.read_bytes = 1ULL << 60, wild.write_bytes = 0, wild.stall_s = 1e9;
  auto tiny = sample(1);
  tiny.loss = -1e-300, tiny.grad_norm = 1e300, tiny.step_time_s = 0, tiny.tokens_per_s = 0;
  const auto lines = lines_of(shown({.last_step = 100000}, [&](Screen& screen) {
    screen.step(wild);
    screen.step(tiny);
  }));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].size(), lines[0].size()) << lines[1];
  EXPECT_EQ(lines[2].size(), lines[0].size()) << lines[2];
}

TEST(Screen, JsonModeWritesNothingButObjects) {
  std::FILE* const notes = std::tmpfile();
  const auto text = shown({.json = true, .last_step = 2, .notes = notes}, [](Screen& screen) {
    screen.note("planning");
    screen.warn("tmpfs");
    screen.step(sample(1));
    screen.finish("0123456789abcdef", {{"steps", 1}});
  });
  static_cast<void>(std::fclose(notes));
  const auto lines = lines_of(text);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(nlohmann::json::parse(lines[0]).at("step"), 1);
  EXPECT_EQ(nlohmann::json::parse(lines[1]).at("weights_xxh64"), "0123456789abcdef");
  EXPECT_EQ(nlohmann::json::parse(lines[1]).at("steps"), 1);
}

TEST(Screen, NoColorAndDumbTerminalsAreHonoured) {
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(screen_options(false, 0, 1).color);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(screen_options(false, 0, 1).terminal);
}

TEST(Screen, DurationsAreShort) {
  EXPECT_EQ(format_duration(0.0123), "12ms");
  EXPECT_EQ(format_duration(0.9999), "1.00s");
  EXPECT_EQ(format_duration(9.999), "10.0s");
  EXPECT_EQ(format_duration(59.99), "1m00s");
  EXPECT_EQ(format_duration(247), "4m07s");
  EXPECT_EQ(format_duration(3725), "1h02m");
  EXPECT_EQ(format_duration(400000), "4d15h");
  EXPECT_EQ(format_duration(NAN), "-");
}

}  // namespace
}  // namespace terrace::cli
