// Files of token ids from texts packed by gzip and zstd: they have the ids of the texts, also after interruptions.
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/tokenize_job.h>
#include <terrace/tests/examples/chat/made_tokenizer.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/packed.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

class PackedJob : public testing::Test {
 protected:
  PackedJob() {
    std::mt19937 random(1);
    for (int i = 0; i < 20'000; ++i) text_ += random() % 9 == 0 ? "\n" : random() % 2 == 0 ? " abc" : " a";
    for (int i = 0; i < 2000; ++i) lines_ += R"({"text":"line )" + std::to_string(random()) + "\"}\n";
    plain_ = {folder_.write("text.txt", text_), folder_.write("lines.jsonl", lines_)};
    packed_ = {
        folder_.write("text.txt.gz", test::gzip_packed(text_.substr(0, 30'000)) + test::gzip_packed(text_.substr(30'000))),
        folder_.write("lines.jsonl.zst", test::zstd_packed(lines_))};
  }
  [[nodiscard]] TokenizeSettings settings(const std::string& out, const std::vector<std::filesystem::path>& inputs) const {
    TokenizeSettings s;
    s.inputs = inputs;
    s.out = folder_ / out;
    s.separator = 256;
    s.piece_bytes = 1000;
    return s;
  }
  void write(const TokenizeSettings& of) {
    TokenizeJob job(of, tokenizer_, pool_);
    while (job.step()) continue;
    job.finish();
    EXPECT_EQ(job.progress().bytes_in_all, job.progress().bytes);
  }
  ScratchFolder folder_;
  std::string text_, lines_;
  std::vector<std::filesystem::path> plain_, packed_;
  Tokenizer tokenizer_ = tokenizer_of_bytes({"</s>"});
  ThreadPool pool_{1};
};

TEST_F(PackedJob, HasTheIdsOfTheTexts) {
  write(settings("plain", plain_));
  write(settings("packed", packed_));
  EXPECT_EQ(folder_.read("plain"), folder_.read("packed"));
  int jobs = 0;
  for (bool done = false; !done; ++jobs) {
    TokenizeJob job(settings("parts", packed_), tokenizer_, pool_);
    const auto begun = job.progress();
    done = !job.step();
    if (done) {
      job.finish();
    } else {
      EXPECT_GE(job.progress().bytes, begun.bytes);
      job.record();
      job.step();  // this step is lost
    }
  }
  EXPECT_GT(jobs, 5);
  EXPECT_EQ(folder_.read("plain"), folder_.read("parts"));
}

// The content before the mended place is unpacked again and must be the same.
TEST_F(PackedJob, GoesOnFromAMendedFile) {
  auto bad = lines_;
  bad.insert(bad.rfind("{"), "broken ");
  const auto s = settings("mended", {folder_.write("lines.jsonl.gz", test::gzip_packed(bad))});
  {
    TokenizeJob broken(s, tokenizer_, pool_);
    EXPECT_THROW(while (broken.step()){}, Error);
    EXPECT_GT(broken.progress().tokens, 0U);
    broken.record();
  }
  folder_.write("lines.jsonl.gz", test::gzip_packed(lines_));
  TokenizeJob rest(s, tokenizer_, pool_);
  EXPECT_GT(rest.progress().tokens, 0U);
  while (rest.step()) continue;
  rest.finish();
  write(settings("whole", {plain_[1]}));
  EXPECT_EQ(folder_.read("whole"), folder_.read("mended"));
}

TEST_F(PackedJob, AFileThatIsCutEndsIt) {
  const auto packed = test::gzip_packed(text_);
  TokenizeJob job(settings("cut", {folder_.write("cut.gz", packed.substr(0, packed.size() / 2))}), tokenizer_, pool_);
  EXPECT_THAT(test::refusal_of([&] {
                while (job.step()) continue;
              }),
              testing::HasSubstr("cut.gz: it is cut"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cut"));
}

}  // namespace
}  // namespace terrace::lm
