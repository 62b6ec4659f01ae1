#include <terrace/tests/fuzz/reader_checks.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/data/token_scan.h>
#include <terrace/examples/lm/models/adapter_config.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/tokenizer/decode_stream.h>
#include <terrace/examples/lm/tokenizer/tokenize_job.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/tokenizer_config.h>
#include <terrace/examples/lm/weights/safetensors.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/tests/examples/chat/encoded_data.h>
#include <terrace/tests/examples/chat/made_tokenizer.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

void demand(bool good, const std::string& what) {
  if (!good) throw std::logic_error(what);
}

const ScratchFolder& scratch() {
  static const ScratchFolder folder;
  return folder;
}

// True if `read` accepts the file. `named`: a text that the error must contain; empty if the caller adds the file's name.
template <class Read>
bool taken(std::string_view named, const Read& read) try {
  read();
  return true;
} catch (const Error& error) {
  const std::string_view what = error.what();
  demand(error.kind() == ErrorKind::refused || error.kind() == ErrorKind::corrupt,
         fmt::format("refused with an error of kind {}: {}", static_cast<int>(error.kind()), what));
  demand(what.find(named) != std::string_view::npos, fmt::format("the error does not name {}: {}", named, what));
  return false;
}

// Reads tensors of a weight file from both ends.
void read_all(const lm::SafetensorsReader& file) {
  std::vector<float> some(4);
  std::uint64_t bytes = 0;
  for (const auto& entry : file.entries()) {
    demand(file.find(entry.name) == &entry, "a tensor is found under another name");
    bytes += entry.elements * lm::size_of(entry.type);
    if (!lm::can_be_read(entry.type)) continue;
    const auto count = std::min<std::uint64_t>(entry.elements, some.size());
    file.read(entry.name, 0, std::span(some).first(count));
    file.read(entry.name, entry.elements - count, std::span(some).first(count));
  }
  demand(bytes <= 1 << 20, "tensors of more bytes than the file");
}

bool takes_safetensors(std::string_view bytes) {
  const auto file = scratch().write("x.safetensors", bytes);
  return taken(file.string(), [&] { read_all(lm::SafetensorsReader(file)); });
}

fs::path write_weights(const std::string& name, const std::vector<std::string>& tensors) {
  std::vector<lm::SafetensorsDeclaration> declared;
  for (const auto& tensor : tensors) declared.push_back({tensor, DType::fp32, {2, 3}});
  const std::vector<float> numbers(6, 1.5F);
  fs::create_directories((scratch() / name).parent_path());
  lm::SafetensorsWriter writer(scratch() / name, declared);
  for (const auto& tensor : tensors) writer.write(tensor, 0, std::span<const float>(numbers));
  writer.finish();
  return scratch() / name;
}

// Checks an index in a directory with two weight files; a third one is outside of it.
bool takes_index(std::string_view text) {
  static const auto directory = [] {
    write_weights("outside.safetensors", {"d"});
    write_weights("model/a.safetensors", {"a"});
    return write_weights("model/b.safetensors", {"b", "c"}).parent_path();
  }();
  scratch().write("model/model.safetensors.index.json", text);
  return taken(directory.string(), [&] {
    const lm::WeightFiles weights(directory);
    for (const auto& file : weights.files())
      for (const auto& entry : file.entries()) {
        const std::string_view name = entry.name;
        demand(name == "a" || name == "b" || name == "c", "a tensor of a file that is not in the directory");
        std::array<float, 6> numbers{};
        weights.read(name, 0, std::span<float>(numbers));
        demand(std::ranges::count(numbers, 1.5F) == 6, "other numbers than were written");
      }
  });
}

bool takes_config(std::string_view text) {
  return taken("config.json", [&] {
    const auto config = lm::parse_model_config(text, "config.json");
    nlohmann::json written;
    try {
      written = lm::model_config_json(config, DType::fp32, {});
    } catch (const Error& error) {  // a model that can be trained but not written in this form
      demand(error.kind() == ErrorKind::refused, error.what());
      return;
    }
    const auto again = lm::parse_model_config(written.dump(), "config.json");
    demand(lm::model_config_json(again, DType::fp32, {}) == written, "written again, it is another model");
  });
}

constexpr std::string_view kText = "Once <|end|> upon  a\n\nt\u00efme, \u2581 1234 \xff\x00 <s> e\u0301";

bool takes_tokenizer(std::string_view text) {
  return taken({}, [&] {
    const lm::Tokenizer tokenizer(lm::TokenizerFile::parse(text));
    demand(lm::TokenizerFile::parse(tokenizer.text()).text() == tokenizer.text(), "written again, it is another");
    const auto tokens = tokenizer.encode(kText, {.with_template = true});
    std::vector<lm::TokenId> known;
    for (const auto id : tokens) {
      demand(id <= lm::kMostTokenId, "an id that is too large");
      if (tokenizer.has(id)) known.push_back(id);
    }
    const auto whole = tokenizer.decode(known);
    lm::DecodeStream stream(tokenizer);
    std::string streamed;
    for (const auto id : known) streamed += stream.add(id);
    demand(streamed + stream.finish() == whole, "decoded token by token, it is another text");
    for (const auto& name : tokenizer.special()) demand(tokenizer.id_of(name).has_value(), "a special token without an id");
  });
}

bool takes_tokenizer_config(std::string_view text) {
  static const auto tokenizer = lm::tokenizer_of_bytes({"<|im_start|>", "<|im_end|>", "</s>"});
  scratch().write("tokenizer_config.json", text);
  scratch().write("generation_config.json", text);
  return taken("_config.json", [&] {
    const auto config = lm::read_tokenizer_config(scratch().path());
    const lm::ChatFormat format(tokenizer, config, 0);
    for (const auto id : config.ends) demand(id <= lm::kMostTokenId, "an id that is too large");
  });
}

// The first byte selects the format of the rest.
bool takes_tokens(std::string_view bytes) {
  if (bytes.empty()) return false;
  constexpr std::array kFormats{"bytes", "u16", "u32", "llm.c"};
  const auto format = lm::token_format(kFormats[static_cast<unsigned char>(bytes[0]) % kFormats.size()], 200);
  const auto file = scratch().write("tokens.bin", bytes.substr(1));
  bool foreign = false;
  const bool accepted = taken("corpus", [&] {
    auto corpus = lm::Corpus::open({file}, {.bytes = 64, .count = 2}, format);
    demand(corpus.tokens() == (bytes.size() - 1 - format.header) / format.bytes, "another number of tokens than the file has");
    lm::TokenScan scan({file}, format, {}, 96);
    try {
      while (!scan.advance(std::chrono::seconds(1))) continue;
    } catch (const Error& error) {
      demand(error.kind() == ErrorKind::failed || error.kind() == ErrorKind::refused, error.what());
      foreign = true;
    }
    std::vector<std::int32_t> tokens(corpus.tokens());
    try {
      corpus.read(0, tokens);
      demand(!foreign, "the scan has found a token that is read");
    } catch (const Error& error) {
      demand(foreign, fmt::format("a token that the scan has not found: {}", error.what()));
    }
    for (const auto token : tokens) demand(token >= 0 && token < 200, "a token that is none");
  });
  return accepted && !foreign;
}

lm::TokenizeSettings tokenize_settings() {
  scratch().write("input.txt", std::string(40, 'a') + " b c d e f g " + std::string(40, 'b'));
  lm::TokenizeSettings settings;
  settings.inputs = {scratch() / "input.txt"};
  settings.out = scratch() / "ids";
  settings.kind = lm::TokenFile::megatron;
  settings.piece_bytes = 16;
  return settings;
}

// A record from which `terrace tokenize` continues. JOB and INPUT are replaced by the values of the actual job.
bool takes_progress(std::string_view text) {
  static const auto tokenizer = lm::tokenizer_of_bytes({"</s>"});
  static ThreadPool pool(1);
  static const auto settings = tokenize_settings();
  static const auto known = [] {
    lm::TokenizeJob begun(settings, tokenizer, pool);
    begun.record();
    auto all = nlohmann::json::parse(scratch().read("ids.progress"));
    while (begun.step()) continue;
    begun.finish();
    return all;
  }();
  static const auto whole = scratch().read("ids.bin");
  std::string record(text);
  for (const auto& [word, key] : {std::pair<std::string, const char*>{"JOB", "job"}, {"INPUT", "input"}})
    if (const auto at = record.find(word); at != std::string::npos)
      record.replace(at, word.size(), known.at(key).get<std::string>());
  scratch().write("ids.progress", record);
  scratch().write("ids.partial", whole);  // longer than any record says
  scratch().write("ids.sizes.partial", std::string(16, '\0'));
  return taken("ids", [&] {
    lm::TokenizeJob resumed(settings, tokenizer, pool);
    while (resumed.step()) continue;
    resumed.finish();
    demand(fs::file_size(scratch() / "ids.bin") <= 2 * whole.size(), "more was written than can be");
  });
}

bool takes_adapter(std::string_view text) {
  const auto file = scratch().write("adapter_config.json", text);
  static const std::vector<std::string> modules{"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"};
  return taken(file.string(), [&] {
    lm::demand_adapter_config(file, 8, 16, {});
    lm::demand_adapted_modules(file, modules);
  });
}

// Reads all sequences of 48 tokens and checks that every token is less than `ids`.
void read_all(lm::ConversationData data, std::int32_t ids) {
  constexpr std::size_t kLength = 48;
  std::vector<std::int32_t> tokens(kLength), targets(kLength), numbers(kLength);
  for (const auto split : {Split::training, Split::held_out})
    for (std::uint64_t i = 0; i < data.sequences(split); ++i) {
      data.fill(split, {&i, 1}, tokens, targets);
      data.number(split, {&i, 1}, tokens, numbers);
      for (std::size_t at = 0; at < kLength; ++at) {
        demand(tokens[at] >= 0 && tokens[at] < ids && targets[at] >= -1 && targets[at] < ids, "a token that is none");
        demand(targets[at] < 0 || at + 1 == kLength || targets[at] == tokens[at + 1], "a target that does not follow");
      }
    }
}

bool takes_conversations(std::string_view text) {
  static const auto tokenizer = lm::tokenizer_of_bytes({"<|im_start|>", "<|im_end|>"});
  static const lm::ChatFormat format(tokenizer, {});
  const auto file = scratch().write("talk.jsonl", text);
  return taken("", [&] { read_all(lm::encoded_data({file}, format, 48, 1), 258); });
}

// Stored conversations: most damage is found before the checksum at the end is compared.
bool takes_encoded(std::string_view bytes) {
  const auto file = scratch().write("kept.talk", bytes);
  return taken("", [&] {
    std::vector<lm::EncodedConversations> files;
    files.emplace_back(file, "talk.jsonl", 48);
    read_all({std::move(files), 1}, 258);
  });
}

}  // namespace

const std::array<ReaderCheck, 10> kReaderChecks{{{"safetensors", takes_safetensors},
                                                 {"index", takes_index},
                                                 {"config", takes_config},
                                                 {"tokenizer", takes_tokenizer},
                                                 {"tokenizer_config", takes_tokenizer_config},
                                                 {"tokens", takes_tokens},
                                                 {"progress", takes_progress},
                                                 {"adapter", takes_adapter},
                                                 {"conversations", takes_conversations},
                                                 {"encoded", takes_encoded}}};

}  // namespace terrace::test
