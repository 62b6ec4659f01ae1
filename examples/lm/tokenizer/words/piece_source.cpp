#include <terrace/examples/lm/tokenizer/words/piece_source.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/json_text.h>
#include <terrace/core/base/refused.h>

namespace terrace::lm {
namespace {

bool has_lines(const std::filesystem::path& path) {
  const auto ending = name_of_content(path).extension();
  return ending == ".jsonl" || ending == ".ndjson";
}

}  // namespace

PieceSource::PieceSource(std::vector<std::filesystem::path> files, std::uint64_t piece_bytes, Cut cut)
    : piece_bytes_(piece_bytes), cut_(std::move(cut)) {
  for (auto& path : files) {
    const DataStream file(path);
    const auto state = file.state();
    files_.push_back({std::move(path), state.bytes, state.written_ns, file.packed()});
  }
}

bool PieceSource::has(InputPlace place) {
  return place.file < files_.size() ? go_to(place) : place.file == files_.size() && place.offset == 0;
}

std::uint64_t PieceSource::bytes() const { return bytes_before({files_.size(), 0}); }

std::uint64_t PieceSource::bytes_before(InputPlace place) const {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < place.file; ++i) sum += files_[i].bytes;
  if (place.file == files_.size() || !files_[place.file].packed) return sum + place.offset;
  return sum + (open_file_ == place.file ? open_->file_place() : 0);
}

std::string PieceSource::described() const {
  std::string text;
  for (const auto& file : files_) text += fmt::format("{} {} {}\n", file.path.string(), file.bytes, file.written_ns);
  return text;
}

// A stream cannot go back, so the file is opened again.
bool PieceSource::go_to(InputPlace place) {
  if (open_file_ != place.file || open_->place() > place.offset) {
    open_file_ = ~std::uint64_t{0};
    open_.emplace(files_[place.file].path);
    open_file_ = place.file;
    demand_unchanged();
  }
  return open_->skip(place.offset - open_->place());
}

void PieceSource::demand_unchanged() const {
  const auto& file = files_[open_file_];
  const auto state = open_->state();
  if (state.bytes != file.bytes || state.written_ns != file.written_ns)
    throw Error(
        fmt::format("{} has changed since the command began, so what is written would be of two texts\n  repeat the "
                    "command when the file is complete; remove what it has written before, if it refuses to go on",
                    file.path.string()));
}

// The end of the last piece that ends within the window; 0 if none does.
std::size_t PieceSource::end_of_piece(std::string_view window, bool lines) const {
  if (!lines) return cut_(window, window.size()).value_or(0);
  const auto newline = window.rfind('\n');
  return newline == std::string_view::npos ? 0 : newline + 1;
}

void PieceSource::each_text(const Piece& piece, const std::string& field,
                            const std::function<void(std::string_view)>& take) const {
  if (!piece.lines) return take(piece.bytes);
  const std::string_view all = piece.bytes;
  for (std::size_t at = 0; at < all.size();) {
    const auto end = std::min(all.find('\n', at), all.size());
    const auto line = all.substr(at, end - at);
    const auto begin = piece.begin.offset + at;
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto refuse = [&](const std::string& why) {
      throw base::Refused(fmt::format("{}, the line at byte {}: {}", files_[piece.begin.file].path.string(), begin, why));
    };
    nlohmann::json object;
    try {
      object = base::parse_json(line);
    } catch (const Error& error) {
      refuse(fmt::format("{}\n  each line must be one JSON object: correct it, or remove it", error.what()));
    }
    if (!object.is_object() || !object.contains(field) || !object[field].is_string())
      refuse(fmt::format("it is no object with a text \"{}\"\n  correct the line, or name another --field", field));
    take(object[field].get_ref<const std::string&>());
  }
}

std::optional<Piece> PieceSource::next(InputPlace& place) {
  if (place.file == files_.size()) return {};
  const auto& file = files_[place.file];
  if (!go_to(place)) throw Error(fmt::format("{} ends before byte {}", file.path.string(), place.offset));
  const bool lines = has_lines(file.path);
  Piece piece{.bytes = {}, .begin = place, .lines = lines, .begins_document = place.offset == 0, .ends_document = false};
  for (auto wanted = piece_bytes_;; wanted *= 2) {
    auto window = open_->peek(wanted + 1);
    if (window.size() <= wanted) {  // the rest of the file
      piece.bytes = window;
      demand_unchanged();
      piece.ends_document = true;
      place = {place.file + 1, 0};
      return piece;
    }
    if (wanted > kMostPieceBytes)
      throw base::Refused(fmt::format("{}, from byte {} on: {} of more than {} bytes", file.path.string(), place.offset,
                                      lines ? "a line" : "a text that this tokenizer cannot encode in parts,",
                                      kMostPieceBytes));
    window = window.substr(0, wanted);
    if (const auto end = end_of_piece(window, lines); end > 0) {
      piece.bytes = window.substr(0, end);
      open_->skip(end);
      place.offset += end;
      return piece;
    }
  }
}

}  // namespace terrace::lm
