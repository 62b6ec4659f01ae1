// Used by compare_with_tokenizers.py: encodes, decodes and times without the command line of `terrace`.
//
//   tokenizer_tool ids TOKENIZER TEXT OUT [ordinary|template]   ids of the whole text, four bytes each
//   tokenizer_tool text TOKENIZER IDS OUT                       the text of ids
//   tokenizer_tool copy TOKENIZER OUT                           reads the file and writes it again
//   tokenizer_tool train OUT TEXT VOCABULARY gpt2|llama3 THREADS [SPECIAL…]
//   tokenizer_tool time TOKENIZER TEXT THREADS                  seconds for the documents in TEXT, which bytes 0 separate, the
//                                                               number of ids, and seconds of all threads on a processor
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/tokenizer/bpe_trainer.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/words/word_counts.h>

namespace {

using namespace terrace::lm;

std::string read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(const std::string& file, const void* bytes, std::size_t size) {
  std::ofstream(file, std::ios::binary).write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }  // of all threads

void time_threads(const Tokenizer& tokenizer, const std::string& text, int threads) {
  std::vector<std::string_view> documents;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\0', at), text.size());
    documents.emplace_back(text.data() + at, end - at);
    at = end + 1;
  }
  std::vector<std::vector<TokenId>> ids(documents.size());
  std::atomic<std::size_t> next = 0;
  const auto cpu_begin = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  const auto work = [&] {
    Encoding with;
    TokenBuffer out;
    for (std::size_t i = next++; i < documents.size(); i = next++) {
      out.clear();
      tokenizer.encode(documents[i], {.finds_added = false}, with, out);
      ids[i].assign(out.view().begin(), out.view().end());
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (auto& other : others) other.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::size_t tokens = 0;
  for (const auto& of_document : ids) tokens += of_document.size();
  std::printf("%.6f %zu %.6f\n", seconds.count(), tokens, cpu_seconds() - cpu_begin);
}

void train(const std::vector<std::string>& words) {
  const auto pattern = words.at(4) == "gpt2" ? Pattern::gpt2 : Pattern::llama3;
  terrace::ThreadPool pool(std::stoi(words.at(5)));
  CountSettings count;
  count.inputs = {words.at(2)};
  count.pattern = pattern;
  TrainerSettings settings;
  settings.vocabulary = std::stoul(words.at(3));
  settings.pattern = pattern;
  settings.special.assign(words.begin() + 6, words.end());
  const auto counts = count_words(count, pool, [](std::uint64_t, std::uint64_t) { return true; });
  const auto text = train_bpe(counts.words, settings, [](std::size_t) { return true; }).text();
  write(words.at(1), text.data(), text.size());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.at(0) == "train") {
    train(words);
    return 0;
  }
  const auto tokenizer = Tokenizer::read(words.at(1));
  if (words.at(0) == "ids") {
    const auto how = words.size() > 4 ? words[4] : "";
    const auto ids =
        tokenizer.encode(read(words.at(2)), {.finds_added = how != "ordinary", .with_template = how == "template"});
    write(words.at(3), ids.data(), ids.size() * sizeof(TokenId));
  } else if (words[0] == "text") {
    const auto bytes = read(words.at(2));
    std::vector<TokenId> ids(bytes.size() / sizeof(TokenId));
    std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(TokenId));
    const auto text = tokenizer.decode(ids);
    write(words.at(3), text.data(), text.size());
  } else if (words[0] == "copy") {
    const auto text = tokenizer.text();
    write(words.at(2), text.data(), text.size());
  } else {
    time_threads(tokenizer, read(words.at(2)), std::stoi(words.at(3)));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
