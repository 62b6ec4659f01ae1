// With --json the output is exactly one object; failures decide the exit code; a table's header is printed once.
#include <terrace/bench/session.h>

#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

// A file in memory.
class Text {
 public:
  Text() : file_(open_memstream(&data_, &size_)) {}
  ~Text() {
    std::fclose(file_);
    std::free(data_);
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  [[nodiscard]] std::FILE* file() const { return file_; }
  [[nodiscard]] std::string text() const {
    std::fflush(file_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

TEST(Session, JsonIsOneObjectAndNothingElse) {
  Text out, notes;
  Session session({.json = true, .stopped = {}, .out = out.file(), .notes = notes.file()});
  session.note("for people");
  session.machine("path", "/data");
  session.result({{"op", "read"}, {"gb_per_s", 2.5}});
  session.result({{"op", "write"}, {"gb_per_s", 1.5}});
  EXPECT_EQ("", out.text());
  EXPECT_EQ(std::nullopt, session.finish());
  const auto object = Result::parse(out.text());
  ASSERT_EQ(2U, object.size());
  EXPECT_EQ("machine", object.begin().key());
  EXPECT_EQ("/data", object.at("machine").at("path"));
  EXPECT_GE(object.at("machine").at("cores"), 1);
  EXPECT_EQ(R"([{"op":"read","gb_per_s":2.5},{"op":"write","gb_per_s":1.5}])", object.at("results").dump());
}

TEST(Session, ATableHasItsHeaderOnce) {
  Text out, notes;
  Session session({.stopped = {}, .out = out.file(), .notes = notes.file()});
  session.result({{"op", "read"}, {"block_bytes", 8 << 20}, {"p50_us", 12.25}, {"spread", 0.031}});
  session.result({{"op", "write"}, {"block_bytes", 4096}, {"p50_us", 12345.6}, {"spread", 0.5}});
  const auto text = out.text();
  EXPECT_EQ(text.find("p50 µs"), text.rfind("p50 µs"));
  for (const auto* const part : {"GB/s", "{"}) EXPECT_THAT(text, Not(HasSubstr(part)));
  for (const auto* const part : {"8.00 MiB", "4.00 KiB", "12.25", "12346", "3.1 %", "50.0 %"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Session, ListsAndOtherProgramsNamesAreOnlyInTheJson) {
  const Result row{{"op", "read"}, {"time_axis", {1, 2, 3}}, {"fio", "rw=read"}};
  Text out, json, notes;
  Session people({.stopped = {}, .out = out.file(), .notes = notes.file()});
  people.result(row);
  EXPECT_THAT(out.text(), Not(HasSubstr("rw=read")));
  EXPECT_THAT(out.text(), Not(HasSubstr("axis")));
  Session scripts({.json = true, .stopped = {}, .out = json.file(), .notes = notes.file()});
  scripts.result(row);
  scripts.finish();
  EXPECT_EQ(row, Result::parse(json.text()).at("results")[0]);
}

TEST(Session, ComparesWithAnEarlierOutput) {
  const ScratchFolder scratch;
  const auto old = scratch.write("old.json", R"({"machine": {"kernel": "0.1"}, "results": [
    {"op": "read", "gb_per_s": 2.0, "spread": 0.1}, {"op": "write", "gb_per_s": 2.0, "spread": 0.1}]})");
  const auto run = [&](bool as_json) {
    Text out, notes;
    Session session({.json = as_json, .stopped = {}, .compare = old, .out = out.file(), .notes = notes.file()});
    session.result({{"op", "read"}, {"gb_per_s", 1.0}, {"spread", 0.02}});
    EXPECT_EQ(std::nullopt, session.finish());
    return out.text();
  };
  const auto text = run(false);
  for (const auto* const part :
       {"tests in both: 1, only there: 1, only here: 0", "kernel was 0.1, is", "GB/s", "0.5", "spread"})
    EXPECT_THAT(text, HasSubstr(part));
  const auto compared = Result::parse(run(true)).at("compared");
  EXPECT_EQ(R"([{"op":"read","figure":"gb_per_s","old":2.0,"new":1.0,"ratio":0.5,"beyond_spread":true}])",
            compared.at("rows").dump());
  EXPECT_EQ(1, compared.at("only_old"));
  EXPECT_THROW(Session({.stopped = {}, .compare = scratch / "absent.json"}), Error);
}

TEST(Session, TheFirstFailureIsTheExitCode) {
  Text out, notes;
  Session session({.stopped = [] { return true; }, .out = out.file(), .notes = notes.file()});
  session.fail(Error("no such disk", ErrorKind::missing));
  session.fail(std::runtime_error("something else"));
  EXPECT_EQ(ErrorKind::missing, session.finish());
  EXPECT_THAT(notes.text(), HasSubstr("error: no such disk\nerror: something else"));
}

TEST(Session, AStopIsInterrupted) {
  Text out, notes;
  Session session({.stopped = [] { return true; }, .out = out.file(), .notes = notes.file()});
  EXPECT_EQ(ErrorKind::interrupted, session.finish());
}

TEST(Session, ALiveLineIsDrawnOnATerminalOnlyAndErased) {
  Text out, notes, plain;
  {
    Session session({.terminal = true, .stopped = {}, .out = out.file(), .notes = notes.file()});
    session.progress("half");
    session.result({{"op", "read"}});
    Session silent({.stopped = {}, .out = out.file(), .notes = plain.file()});
    silent.progress("half");
  }
  EXPECT_EQ("\r\033[Khalf\r\033[K", notes.text());
  EXPECT_EQ("", plain.text());
}

}  // namespace
}  // namespace terrace::bench
