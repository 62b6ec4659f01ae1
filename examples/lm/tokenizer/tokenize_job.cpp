#include <terrace/examples/lm/tokenizer/tokenize_job.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include <terrace/core/base/json_text.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/tokenizer/words/piece_source.h>

namespace terrace::lm {
namespace {

// The result of a piece: ids, and the indexes after which a document ends.
struct Encoded {
  TokenBuffer ids;
  std::vector<std::size_t> ends;
};

constexpr int kManyPieces = 32;                                  // a piece and its ids need up to 30 MiB
constexpr std::uint64_t kMostCounted = std::uint64_t{1} << 48U;  // more than any file has

std::filesystem::path record_of(const TokenizeSettings& settings) { return settings.out.string() + ".progress"; }

std::uint64_t hash_of(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

// The checksum of everything read so far, updated with one more piece.
std::uint64_t with_piece(std::uint64_t until_here, const Piece& piece) {
  return XXH3_64bits_withSeed(piece.bytes.data(), piece.bytes.size(), until_here);
}

std::string names_of(const std::vector<std::filesystem::path>& files) {
  std::string names;
  for (const auto& file : files) names += file.string() + "\n";
  return names;
}

}  // namespace

std::optional<TokenId> usual_separator(const Tokenizer& tokenizer) {
  for (const auto* const name : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const auto id = tokenizer.id_of(name)) return id;
  return {};
}

struct TokenizeJob::State {
  State(TokenizeSettings of, const Tokenizer& with, ThreadPool& on)
      : settings(std::move(of)),
        tokenizer(with),
        pool(on),
        source(
            settings.inputs, settings.piece_bytes,
            [this](std::string_view text, std::size_t most) { return tokenizer.cut_before(text, most, settings.finds_added); }),
        pieces_at_once(static_cast<std::size_t>(std::min(4 * on.threads(), std::max(kManyPieces, on.threads())))) {
    // Settings that decide the output; the number of threads is not one of them.
    identity = fmt::format(
        "{:016x}",
        hash_of(fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", names_of(settings.inputs), tokenizer.text(), name_of(settings.kind),
                            settings.field, settings.separator ? std::int64_t{*settings.separator} : -1,
                            settings.separator_first, settings.finds_added, settings.piece_bytes)));
    const auto done = read_record();
    writer.emplace(settings.out, settings.kind, tokenizer.ids(), done, settings.log);
  }

  [[nodiscard]] std::filesystem::path record_file() const { return record_of(settings); }
  WriterPlace read_record();
  void write_record() const;
  [[nodiscard]] std::string input() const { return fmt::format("{:016x}", hash_of(source.described())); }
  // True if the input before `place` is unchanged; bytes after it may have been corrected.
  [[nodiscard]] bool begins_with(std::uint64_t sum);
  [[nodiscard]] std::vector<Piece> read_pieces();
  Encoding take_encoding() {
    const std::lock_guard lock(mutex);
    if (encodings.empty()) return {};
    auto with = std::move(encodings.back());
    encodings.pop_back();
    return with;
  }
  void give_back(Encoding with) {
    const std::lock_guard lock(mutex);
    encodings.push_back(std::move(with));
  }
  void encode(const Piece& piece, Encoding& with, Encoded& out) const;
  void separate(Encoded& out, bool first) const {
    if (settings.separator && settings.separator_first == first) out.ids.push(*settings.separator);
  }

  TokenizeSettings settings;
  const Tokenizer& tokenizer;
  ThreadPool& pool;
  PieceSource source;
  std::string identity;  // a record of the same job has the same text
  InputPlace place;
  std::uint64_t read_sum = 0;  // with_piece() over all pieces before `place`
  std::optional<TokenWriter> writer;
  const std::size_t pieces_at_once;
  std::mutex mutex;
  std::vector<Encoding> encodings;  // not used by a task at the moment; there is at most one per thread
};

WriterPlace TokenizeJob::State::read_record() {
  if (!std::filesystem::exists(record_file())) return {};
  const auto refuse = [&] {
    throw base::Refused(
        fmt::format("{} was begun with other input, another tokenizer or other settings\n  remove {} to begin again",
                    settings.out.string(), record_file().string()));
  };
  try {
    const auto json = base::parse_json(read_text_file(record_file()));
    if (json.at("job") != identity) refuse();
    const auto count = [&](const char* key) {
      const auto& value = json.at(key);
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMostCounted)
        throw Error(fmt::format("its \"{}\" is no count", key));
      return value.get<std::uint64_t>();
    };
    place = {count("file"), count("offset")};
    if (!json.contains("input")) refuse();  // from an older version
    if (!json.at("read").is_number_unsigned()) throw Error("its \"read\" is no sum");
    read_sum = json.at("read").get<std::uint64_t>();
    if (json.at("input") != input() && !begins_with(read_sum)) refuse();
    if (!source.has(place)) throw Error("it names a place that the input does not have");
    const WriterPlace done{count("tokens"), count("documents"), count("open_tokens")};
    if (done.open_tokens > done.tokens) throw Error("a document has more tokens than all of them");
    return done;
  } catch (const nlohmann::json::exception&) {
    throw Error(fmt::format("{} is damaged\n  remove it to begin again", record_file().string()), ErrorKind::corrupt,
                {.path = record_file().string()});
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::refused) throw;
    throw Error(fmt::format("{} cannot be used: {}\n  remove it to begin again", record_file().string(), error.what()),
                ErrorKind::corrupt, error.facts_at(record_file().string()));
  }
}

void TokenizeJob::State::write_record() const {
  const auto done = writer->place();
  const nlohmann::ordered_json json{{"job", identity},
                                    {"input", input()},
                                    {"read", read_sum},
                                    {"file", place.file},
                                    {"offset", place.offset},
                                    {"tokens", done.tokens},
                                    {"documents", done.documents},
                                    {"open_tokens", done.open_tokens}};
  replace_text_file(record_file(), json.dump() + "\n", files::Durable::yes);
}

bool TokenizeJob::State::begins_with(std::uint64_t sum) {
  std::uint64_t found = 0;
  InputPlace at;
  while (at.file < place.file || (at.file == place.file && at.offset < place.offset)) {
    const auto piece = source.next(at);
    if (!piece) return false;
    found = with_piece(found, *piece);
  }
  return at.file == place.file && at.offset == place.offset && found == sum;
}

std::vector<Piece> TokenizeJob::State::read_pieces() {
  std::vector<Piece> pieces;
  for (std::uint64_t bytes = 0; pieces.size() < pieces_at_once && bytes < pieces_at_once * settings.piece_bytes;) {
    auto piece = source.next(place);
    if (!piece) break;
    bytes += piece->bytes.size();
    pieces.push_back(*std::move(piece));
  }
  return pieces;
}

void TokenizeJob::State::encode(const Piece& piece, Encoding& with, Encoded& out) const {
  const bool begins = piece.lines || piece.begins_document, ends = piece.lines || piece.ends_document;
  source.each_text(piece, settings.field, [&](std::string_view text) {
    if (begins) separate(out, true);
    tokenizer.encode(text, {.finds_added = settings.finds_added, .goes_on = !begins}, with, out.ids);
    if (!ends) return;
    separate(out, false);
    out.ends.push_back(out.ids.size());
  });
}

TokenizeJob::TokenizeJob(TokenizeSettings settings, const Tokenizer& tokenizer, ThreadPool& pool)
    : state_(std::make_unique<State>(std::move(settings), tokenizer, pool)) {}
TokenizeJob::~TokenizeJob() = default;

bool TokenizeJob::step() {
  auto& s = *state_;
  const auto before = s.place;
  std::vector<Piece> pieces;
  std::vector<Encoded> encoded;
  try {
    pieces = s.read_pieces();
    if (pieces.empty()) return false;
    encoded.resize(pieces.size());
    s.pool.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      auto with = s.take_encoding();
      s.encode(pieces[at], with, encoded[at]);
      s.give_back(std::move(with));
    });
  } catch (...) {  // after an error in the input: what was written before is valid
    s.place = before;
    throw;
  }
  for (const auto& piece : encoded) s.writer->write(piece.ids.view(), piece.ends);
  for (const auto& piece : pieces) s.read_sum = with_piece(s.read_sum, piece);
  return true;
}

void TokenizeJob::record() {
  state_->writer->sync();
  state_->write_record();
}

void TokenizeJob::finish() {
  files::remove_path(state_->record_file());  // removed first: it refers to a file that finish() renames
  state_->writer->finish();
}

TokenizeProgress TokenizeJob::progress() const {
  const auto place = state_->writer->place();
  return {state_->source.bytes_before(state_->place), state_->source.bytes(), place.tokens, place.documents};
}

std::vector<std::filesystem::path> TokenizeJob::unfinished_files(const TokenizeSettings& settings) {
  auto all = TokenWriter::unfinished_files(settings.out, settings.kind);
  all.insert(all.end(), {record_of(settings), record_of(settings).string() + ".tmp"});
  return all;
}

}  // namespace terrace::lm
