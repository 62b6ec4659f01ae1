#include <terrace/examples/lm/tokenizer/sentencepiece_file.h>

#include <cstdint>
#include <optional>

#include <terrace/core/base/error.h>

namespace terrace::lm {
namespace {

// Field numbers in sentencepiece_model.proto.
constexpr std::uint64_t kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;                       // in the model
constexpr std::uint64_t kModelType = 3, kSuffix = 24;                                           // in the trainer
constexpr std::uint64_t kCharsmap = 2, kDummyPrefix = 3, kExtraSpaces = 4, kEscapesSpaces = 5;  // in a normalizer
constexpr std::uint64_t kBpe = 2;                                                               // a model type
constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;                    // wire types

// Iterates over the fields of a message.
class Fields {
 public:
  struct Field {
    std::uint64_t number = 0, value = 0;  // value: if it is a varint
    std::string_view bytes;
  };
  explicit Fields(std::string_view message) : left_(message) {}

  std::optional<Field> next() {
    if (left_.empty()) return {};
    const auto tag = varint();
    Field field{.number = tag >> 3U, .value = 0, .bytes = {}};
    switch (tag & 7U) {
      case kVarint: field.value = varint(); break;
      case kFixed64: take(8); break;
      case kBytes: field.bytes = take(varint()); break;
      case kFixed32: take(4); break;
      default: refuse();
    }
    return field;
  }

 private:
  [[noreturn]] static void refuse() { throw Error("it is no model of sentencepiece", ErrorKind::corrupt); }
  std::string_view take(std::uint64_t count) {
    if (count > left_.size()) refuse();
    const auto taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  std::uint64_t varint() {
    std::uint64_t number = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      number |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return number;
    }
    refuse();
  }

  std::string_view left_;
};

template <class Take>
void each_field(std::string_view message, const Take& take) {
  Fields fields(message);
  while (const auto field = fields.next()) take(*field);
}

}  // namespace

SentencePieceFile read_sentencepiece_file(std::string_view bytes) {
  SentencePieceFile out;
  each_field(bytes, [&](const Fields::Field& part) {
    if (part.number != kTrainer && part.number != kNormalizer && part.number != kDenormalizer) return;
    each_field(part.bytes, [&](const Fields::Field& field) {
      const bool flag = field.value != 0;
      if (part.number == kTrainer && field.number == kModelType) out.bpe = field.value == kBpe;
      if (part.number == kTrainer && field.number == kSuffix) out.spaces_behind = flag;
      if (part.number == kNormalizer && field.number == kCharsmap) out.maps_characters = !field.bytes.empty();
      if (part.number == kNormalizer && field.number == kDummyPrefix) out.prefixes = flag;
      if (part.number == kNormalizer && field.number == kExtraSpaces) out.removes_spaces = flag;
      if (part.number == kNormalizer && field.number == kEscapesSpaces) out.escapes_spaces = flag;
      if (part.number == kDenormalizer && field.number == kCharsmap) out.maps_decoded = !field.bytes.empty();
    });
  });
  return out;
}

std::string without_prefix(std::string bytes) {
  // A normalizer_spec of two bytes: add_dummy_prefix = false.
  for (const auto byte : {kNormalizer << 3U | kBytes, std::uint64_t{2}, kDummyPrefix << 3U | kVarint, std::uint64_t{0}})
    bytes += static_cast<char>(byte);
  return bytes;
}

}  // namespace terrace::lm
