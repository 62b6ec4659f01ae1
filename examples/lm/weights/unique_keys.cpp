#include <terrace/examples/lm/weights/unique_keys.h>

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/nesting.h>
#include <terrace/core/base/printable.h>

namespace terrace::lm {

nlohmann::json parse_json_with_unique_keys(std::string_view text) try {
  using Event = nlohmann::json::parse_event_t;
  base::demand_shallow_json(text);
  std::vector<std::set<std::string>> keys;  // of the open objects
  return nlohmann::json::parse(text, [&](int, Event event, const nlohmann::json& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw Error(fmt::format("it has the key \"{}\" twice", base::printable(parsed.get<std::string>())));
    return true;
  });
} catch (const nlohmann::json::parse_error& error) {
  throw Error(fmt::format("it is not JSON from its byte {} on", error.byte));
} catch (const nlohmann::json::exception&) {  // a number that does not fit into a double
  throw Error("it has a number that is too large");
}

}  // namespace terrace::lm
