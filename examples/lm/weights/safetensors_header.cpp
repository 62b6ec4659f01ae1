#include <terrace/examples/lm/weights/safetensors_header.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>

namespace terrace::lm {
namespace {

struct TypeRow {
  FileType type;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<TypeRow, 15> kTypeRows{{{FileType::BOOL, "BOOL", 1},
                                             {FileType::U8, "U8", 1},
                                             {FileType::I8, "I8", 1},
                                             {FileType::F8_E5M2, "F8_E5M2", 1},
                                             {FileType::F8_E4M3, "F8_E4M3", 1},
                                             {FileType::I16, "I16", 2},
                                             {FileType::U16, "U16", 2},
                                             {FileType::F16, "F16", 2},
                                             {FileType::BF16, "BF16", 2},
                                             {FileType::I32, "I32", 4},
                                             {FileType::U32, "U32", 4},
                                             {FileType::F32, "F32", 4},
                                             {FileType::I64, "I64", 8},
                                             {FileType::U64, "U64", 8},
                                             {FileType::F64, "F64", 8}}};

// The format has these types but terrace does not. They are not in the table, because its element sizes are whole bytes.
constexpr std::string_view kUnreadTypes[] = {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"};

constexpr std::string_view kMetadata = "__metadata__";

// The header is parsed as a stream of events: this detects duplicate keys, keeps only the entries, and makes deep nesting
// harmless, because anything unknown to the format stops the parser.
class Events final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Events(const std::string& file) : file_(file) {}

  [[nodiscard]] SafetensorsHeader take() && {
    std::ranges::stable_sort(header_.entries, {}, &SafetensorsEntry::offset);
    return std::move(header_);
  }
  [[nodiscard]] const std::map<std::string, std::uint64_t>& ends() const { return ends_; }

  bool start_object(std::size_t) override {
    if (depth_ == 0) return ++depth_ == 1;
    if (depth_ != 1) wrong("an object where the format has none");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && name_ != kMetadata) finish_entry();
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      if (!seen_.insert(key).second) corrupt(fmt::format("tensor \"{}\" occurs twice", base::printable(key)));
      name_ = key;
      entry_ = {};
      entry_.name = key;
      type_seen_ = false;
      shape_.reset();
      offsets_.reset();
    } else if (name_ == kMetadata ? header_.metadata.contains(key) : false) {
      wrong(fmt::format("metadata \"{}\" occurs twice", base::printable(key)));
    }
    field_ = key;
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ != 2 || list_ != nullptr) wrong("a string where the format has none");
    if (name_ == kMetadata) {
      header_.metadata[field_] = value;
      return true;
    }
    if (field_ != "dtype" || std::exchange(type_seen_, true))
      wrong(fmt::format("unexpected string for \"{}\"", base::printable(field_)));
    const auto* row = std::ranges::find(kTypeRows, std::string_view(value), &TypeRow::name);
    if (std::ranges::count(kUnreadTypes, std::string_view(value)) != 0)
      throw base::Refused(
          fmt::format("{}: tensor \"{}\" is {}: such weights, as quantised models have them, are not read\n  give the model "
                      "in F32, BF16, F16 or F64",
                      file_, base::printable(name_), value));
    if (row == kTypeRows.end()) wrong(fmt::format("unknown dtype \"{}\"", base::printable(value)));
    entry_.type = row->type;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || list_ != nullptr || name_ == kMetadata) wrong("a list where the format has none");
    auto* list = field_ == "shape" ? &shape_ : field_ == "data_offsets" ? &offsets_ : nullptr;
    if (list == nullptr || list->has_value()) wrong(fmt::format("unexpected list for \"{}\"", base::printable(field_)));
    list_ = &list->emplace();
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (list_ == nullptr) wrong("a number where the format has none");
    list_->push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override { wrong(fmt::format("the negative number {}", value)); }
  bool number_float(number_float_t, const string_t& text) override {
    wrong(fmt::format("the number {}, which is not a 64-bit whole number", base::printable(text)));
  }
  bool null() override { wrong("a null"); }
  bool boolean(bool) override { wrong("a boolean"); }
  bool binary(binary_t&) override { wrong("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    corrupt(fmt::format("the header is not JSON near its byte {}: the file is damaged", position));
  }

 private:
  [[noreturn]] void corrupt(const std::string& what) const {
    throw Error(fmt::format("{}: {}", file_, what), ErrorKind::corrupt, {.path = std::string(file_)});
  }
  [[noreturn]] void wrong(const std::string& what) const {
    corrupt(name_.empty() ? "the header has " + what
                          : fmt::format("the header of tensor \"{}\" has {}", base::printable(name_), what));
  }

  void finish_entry() {
    if (!type_seen_ || !shape_ || !offsets_) wrong("no dtype, shape or data_offsets");
    if (offsets_->size() != 2) wrong(fmt::format("{} data offsets instead of 2", offsets_->size()));
    const auto [begin, end] = std::pair((*offsets_)[0], (*offsets_)[1]);
    if (end < begin) wrong(fmt::format("data offsets that run backwards, {} to {}", begin, end));
    std::uint64_t bytes = size_of(entry_.type);
    entry_.elements = 1;
    for (const auto d : *shape_) {
      if (__builtin_mul_overflow(bytes, d, &bytes)) wrong("a shape that overflows 64 bits");
      entry_.elements *= d;  // cannot overflow if its bytes do not
    }
    if (end - begin != bytes) {
      wrong(fmt::format("a shape of {} bytes but data offsets {} to {}, {} bytes", bytes, begin, end, end - begin));
    }
    entry_.shape = std::move(*shape_);
    entry_.offset = begin;
    ends_[entry_.name] = end;
    header_.entries.push_back(std::move(entry_));
  }

  const std::string& file_;
  SafetensorsHeader header_;
  std::map<std::string, std::uint64_t> ends_;
  std::set<std::string> seen_;
  int depth_ = 0;
  std::string name_, field_;
  SafetensorsEntry entry_;
  bool type_seen_ = false;
  std::optional<std::vector<std::uint64_t>> shape_, offsets_;
  std::vector<std::uint64_t>* list_ = nullptr;
};

}  // namespace

std::string_view name_of(FileType type) { return kTypeRows[static_cast<std::size_t>(type)].name; }
std::uint64_t size_of(FileType type) { return kTypeRows[static_cast<std::size_t>(type)].bytes; }

std::string describe(const SafetensorsEntry& entry) {
  std::string shape;
  constexpr std::size_t kMostPrinted = 8;
  for (const auto d : std::span(entry.shape).first(std::min(entry.shape.size(), kMostPrinted)))
    shape += (shape.empty() ? "" : ", ") + std::to_string(d);
  if (entry.shape.size() > kMostPrinted) shape += fmt::format(", … ({} dimensions)", entry.shape.size());
  return fmt::format("tensor \"{}\" ({} [{}])", base::printable(entry.name), name_of(entry.type), shape);
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, const std::string& file) {
  const auto corrupt = [&](const std::string& what) {
    throw Error(fmt::format("{}: {}", file, what), ErrorKind::corrupt, {.path = std::string(file)});
  };
  if (text.empty() || text.front() != '{') corrupt("not a safetensors file: the header does not begin with '{'");
  Events events(file);
  if (!nlohmann::json::sax_parse(text, &events)) corrupt("the header is not JSON");
  const auto ends = events.ends();
  SafetensorsHeader header = std::move(events).take();
  // Sorted by offset, with an empty tensor before the one that begins at the same place. Each must begin where the previous one
  // ended.
  std::ranges::stable_sort(header.entries, {}, [&](const auto& e) { return std::pair(e.offset, ends.at(e.name)); });
  std::uint64_t at = 0;
  for (const auto& entry : header.entries) {
    if (entry.offset < at)
      corrupt(fmt::format("{} overlaps the tensor before it: it begins at {}, not {}", describe(entry), entry.offset, at));
    if (entry.offset > at) corrupt(fmt::format("there is a hole of {} bytes before {}", entry.offset - at, describe(entry)));
    at = ends.at(entry.name);
    if (at > data_bytes) {
      corrupt(
          fmt::format("{} ends at data byte {}, but the file has only {}: it is cut short", describe(entry), at, data_bytes));
    }
  }
  if (at != data_bytes) corrupt(fmt::format("{} bytes after the last tensor belong to none", data_bytes - at));
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) root[std::string(kMetadata)] = header.metadata;
  for (const auto& e : header.entries) {
    root[e.name] = {
        {"dtype", name_of(e.type)}, {"shape", e.shape}, {"data_offsets", {e.offset, e.offset + e.elements * size_of(e.type)}}};
  }
  std::string text = root.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace terrace::lm
