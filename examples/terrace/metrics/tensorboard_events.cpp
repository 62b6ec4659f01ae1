#include <terrace/examples/terrace/metrics/tensorboard_events.h>

#include <bit>
#include <cstring>
#include <optional>

#include <terrace/examples/terrace/base/crc32c.h>

namespace terrace::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

enum class Wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}
template <class T>
bool take(std::string_view& in, T& value) {
  if (in.size() < sizeof value) return false;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return true;
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
std::optional<std::uint64_t> take_varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

void put_field(std::string& out, std::uint32_t field, Wire wire) {
  put_varint(out, field << 3 | static_cast<std::uint32_t>(wire));
}
void put_text(std::string& out, std::uint32_t field, std::string_view text) {
  put_field(out, field, Wire::bytes);
  put_varint(out, text.size());
  out += text;
}

// Reads a message field by field. A field has its number, and the one value that fits its type.
struct Field {
  std::uint32_t number = 0;
  std::uint64_t varint = 0;
  double real = 0;
  float small = 0;
  std::string_view bytes;
};
bool take_field(std::string_view& in, Field& field) {
  const auto key = take_varint(in);
  if (!key) return false;
  field = {};
  field.number = static_cast<std::uint32_t>(*key >> 3);
  switch (static_cast<Wire>(*key & 7)) {
    case Wire::varint: {
      const auto value = take_varint(in);
      field.varint = value.value_or(0);
      return value.has_value();
    }
    case Wire::fixed64: return take(in, field.real);
    case Wire::fixed32: return take(in, field.small);
    case Wire::bytes: {
      const auto size = take_varint(in);
      if (!size || *size > in.size()) return false;
      field.bytes = in.substr(0, *size);
      in.remove_prefix(*size);
      return true;
    }
  }
  return false;
}

bool parse_value(std::string_view message, TensorBoardEvent& event) {
  std::pair<std::string, float> scalar;
  for (Field field; !message.empty();) {
    if (!take_field(message, field)) return false;
    if (field.number == 1) scalar.first = field.bytes;
    if (field.number == 2) scalar.second = field.small;
  }
  event.scalars.push_back(std::move(scalar));
  return true;
}

bool parse_event(std::string_view message, TensorBoardEvent& event) {
  event = {};
  for (Field field; !message.empty();) {
    if (!take_field(message, field)) return false;
    if (field.number == 1) event.wall_time = field.real;
    if (field.number == 2) event.step = field.varint;
    if (field.number == 3) event.file_version = field.bytes;
    if (field.number != 5) continue;
    for (Field value; !field.bytes.empty();)
      if (!take_field(field.bytes, value) || (value.number == 1 && !parse_value(value.bytes, event))) return false;
  }
  return true;
}

// Masks a checksum. Without that, the checksum of bytes that contain their own checksum is a constant
// (tensorflow/core/lib/hash/crc32c.h).
std::uint32_t masked(std::string_view bytes) {
  const auto crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xa282ead8U;
}

}  // namespace

std::string to_record(const TensorBoardEvent& event) {
  std::string message;
  put_field(message, 1, Wire::fixed64);
  put(message, event.wall_time);
  if (event.step != 0) {
    put_field(message, 2, Wire::varint);
    put_varint(message, event.step);
  }
  if (!event.file_version.empty()) put_text(message, 3, event.file_version);
  if (!event.scalars.empty()) {
    std::string summary;
    for (const auto& [tag, number] : event.scalars) {
      std::string value;
      put_text(value, 1, tag);
      put_field(value, 2, Wire::fixed32);
      put(value, number);
      put_text(summary, 1, value);
    }
    put_text(message, 5, summary);
  }
  std::string out;
  put(out, std::uint64_t{message.size()});
  put(out, masked(out));
  out += message;
  put(out, masked(message));
  return out;
}

bool take_record(std::string_view& bytes, TensorBoardEvent& event) {
  auto rest = bytes;
  std::uint64_t length = 0;
  std::uint32_t of_length = 0, of_message = 0;
  const auto header = rest.substr(0, sizeof length);
  if (!take(rest, length) || !take(rest, of_length) || of_length != masked(header) || length > rest.size()) return false;
  const auto message = rest.substr(0, length);
  rest.remove_prefix(length);
  if (!take(rest, of_message) || of_message != masked(message) || !parse_event(message, event)) return false;
  bytes = rest;
  return true;
}

}  // namespace terrace::cli
