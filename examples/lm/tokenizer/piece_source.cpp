#include <terrace/examples/lm/tokenizer/piece_source.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/file_state.h>
#include <terrace/core/json_text.h>

namespace terrace::lm {
namespace {

FileHandle open_input(const std::filesystem::path& path) {
  std::string why;
  try {
    if (auto file = open_regular(path, O_RDONLY)) return file;
    why = describe_errno(errno);
  } catch (const Error& error) {
    why = error.what();
  }
  throw Error(fmt::format("{} cannot be read: {}\n  give a regular file with text in it", path.string(), why), Exit::usage);
}

FileState state_of_input(const FileHandle& file, const std::filesystem::path& path) try {
  return state_of(file.get());
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be read: {}", path.string(), error.what()), Exit::usage);
}

bool has_lines(const std::filesystem::path& path) { return path.extension() == ".jsonl" || path.extension() == ".ndjson"; }

}  // namespace

PieceSource::PieceSource(std::vector<std::filesystem::path> files, std::uint64_t piece_bytes, Cut cut)
    : piece_bytes_(piece_bytes), cut_(std::move(cut)) {
  for (auto& path : files) {
    const auto state = state_of_input(open_input(path), path);
    files_.push_back({std::move(path), state.bytes, state.written_ns});
  }
}

bool PieceSource::has(InputPlace place) const {
  return place.file < files_.size() ? place.offset <= files_[place.file].bytes
                                    : place.file == files_.size() && place.offset == 0;
}

std::uint64_t PieceSource::bytes() const { return bytes_before({files_.size(), 0}); }

std::uint64_t PieceSource::bytes_before(InputPlace place) const {
  std::uint64_t sum = place.offset;
  for (std::uint64_t i = 0; i < place.file; ++i) sum += files_[i].bytes;
  return sum;
}

std::string PieceSource::described() const {
  std::string text;
  for (const auto& file : files_) text += fmt::format("{} {} {}\n", file.path.string(), file.bytes, file.written_ns);
  return text;
}

void PieceSource::open(std::uint64_t file) {
  if (open_file_ == file) return;
  open_ = open_input(files_[file].path);
  open_file_ = file;
  demand_unchanged();
}

void PieceSource::demand_unchanged() const {
  const auto& file = files_[open_file_];
  const auto state = state_of_input(open_, file.path);
  if (state.bytes != file.bytes || state.written_ns != file.written_ns)
    throw Error(
        fmt::format("{} has changed since the command began, so what is written would be of two texts\n  repeat the "
                    "command when the file is complete; remove what it has written before, if it refuses to go on",
                    file.path.string()));
}

std::string PieceSource::read(std::uint64_t offset, std::uint64_t bytes) const try {
  std::string out(bytes, '\0');
  read_all(open_.get(), offset, std::as_writable_bytes(std::span(out)));
  return out;
} catch (const Error& error) {
  throw Error(fmt::format("{} could not be read at offset {}: {}", files_[open_file_].path.string(), offset, error.what()));
}

// 0: the window has no end of a piece.
std::size_t PieceSource::end_of_piece(const std::string& window, std::uint64_t most, bool lines) const {
  if (!lines) return cut_(window, most).value_or(0);
  const auto newline = window.rfind('\n');
  return newline == std::string::npos ? 0 : newline + 1;
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
      throw Error(fmt::format("{}, the line at byte {}: {}", files_[piece.begin.file].path.string(), begin, why), Exit::usage);
    };
    nlohmann::json object;
    try {
      object = parse_json(line);
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
  open(place.file);
  const auto& file = files_[place.file];
  const bool lines = has_lines(file.path);
  const auto left = file.bytes - place.offset;
  Piece piece{.bytes = {}, .begin = place, .lines = lines, .begins_document = place.offset == 0, .ends_document = false};
  for (auto wanted = piece_bytes_;; wanted *= 2) {
    if (wanted >= left) {  // all that is left
      piece.bytes = read(place.offset, left);
      demand_unchanged();
      piece.ends_document = true;
      place = {place.file + 1, 0};
      return piece;
    }
    if (wanted > kMostPieceBytes)
      throw Error(fmt::format("{}, from byte {} on: {} of more than {} bytes", file.path.string(), place.offset,
                              lines ? "a line" : "a text that this tokenizer cannot encode in parts,", kMostPieceBytes),
                  Exit::usage);
    piece.bytes = read(place.offset, wanted);
    if (const auto end = end_of_piece(piece.bytes, wanted, lines); end > 0) {
      piece.bytes.resize(end);
      place.offset += end;
      return piece;
    }
  }
}

}  // namespace terrace::lm
