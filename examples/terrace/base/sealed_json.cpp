#include <terrace/examples/terrace/base/sealed_json.h>

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include <terrace/core/base/json_text.h>
#include <terrace/core/base/refused.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::cli {
namespace {

constexpr const char* kMember = "xxh3";

// The text before and after the 16 digits.
struct Style {
  std::string_view before, after;
};
constexpr std::size_t kMostDamaged = 4;  // an ending with this many damaged bytes is still recognised
constexpr Style kOneLine{R"(,"xxh3":")", R"("})"};
constexpr Style kIndented{",\n  \"xxh3\": \"", "\"\n}\n"};

std::string ending(const Style& style, std::string_view body) {
  return fmt::format("{}{:016x}{}", style.before, checksum_of(std::as_bytes(std::span(body))), style.after);
}

// `text` is a whole object, which needs at least one member; `closing` is what follows the last one.
std::string sealed(std::string text, std::string_view closing, const Style& style) {
  text.resize(text.size() - closing.size());
  return text + ending(style, text);
}

enum class Seal { absent, broken, intact };
Seal seal_of(std::string_view text, const Style& style) {
  const auto bytes = ending(style, "").size();
  if (text.size() < bytes) return Seal::absent;
  const auto body = text.substr(0, text.size() - bytes), found = text.substr(body.size());
  const auto expected = ending(style, body);
  if (found == expected) return Seal::intact;
  // An object must not pass for one without a checksum because a bit in the ending itself was flipped.
  std::size_t same = 0;
  const auto fixed = style.before.size() + style.after.size();
  for (std::size_t i = 0; i < bytes; ++i) {
    const bool digit = i >= style.before.size() && i < bytes - style.after.size();
    same += !digit && found[i] == expected[i] ? 1 : 0;
  }
  return same + kMostDamaged >= fixed ? Seal::broken : Seal::absent;
}

void demand_version(const nlohmann::json& object) {
  const auto found = object.find("version");
  if (found == object.end()) return;
  if (!found->is_number_unsigned()) throw Error("its version is not a number");
  if (const auto version = found->get<std::uint64_t>(); version != kRecordVersion)
    throw base::Refused(
        fmt::format("it has version {}, and this program reads version {}\n  use the version of terrace that wrote it", version,
                    kRecordVersion));
}

}  // namespace

std::string seal(const nlohmann::json& object) { return sealed(object.dump(), "}", kOneLine); }
std::string seal_indented(const nlohmann::json& object) { return sealed(object.dump(2), "\n}", kIndented); }

nlohmann::json parse_sealed(std::string_view text) {
  const auto seal = std::max(seal_of(text, kOneLine), seal_of(text, kIndented));
  nlohmann::json object;
  try {
    object = base::parse_json(text);
  } catch (const Error&) {
    if (seal == Seal::broken) throw Error("it does not match its checksum");
    throw;
  }
  const bool has_checksum = object.is_object() && object.contains(kMember);
  if (seal == Seal::broken || (seal == Seal::absent && has_checksum)) throw Error("it does not match its checksum");
  if (!object.is_object()) throw Error("not a JSON object");
  demand_version(object);
  object.erase(kMember);
  return object;
}

}  // namespace terrace::cli
