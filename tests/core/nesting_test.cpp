// A text that is nested deeper than any of terrace's files is refused before it is parsed; brackets and dots in strings and
// comments do not count as nesting.
#include <terrace/core/base/nesting.h>

#include <gtest/gtest.h>

#include <string>

#include <terrace/core/base/error.h>

namespace terrace {
namespace {

std::string repeated(const std::string& what, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += what;
  return out;
}

TEST(Nesting, OfJson) {
  base::demand_shallow_json(repeated("[", 64) + repeated("]", 64));
  base::demand_shallow_json("[" + repeated("{},", 1000) + "{}]");
  base::demand_shallow_json("\"" + repeated("[", 1000) + "\\\"" + repeated("{", 1000) + "\"");
  EXPECT_THROW(base::demand_shallow_json(repeated("[", 65)), Error);
  EXPECT_THROW(base::demand_shallow_json("\"\\\\\"" + repeated("[{\"a\":", 40)), Error);
}

TEST(Nesting, OfToml) {
  const auto parts = [](int n) { return "a" + repeated(".a", n - 1); };
  base::demand_shallow_toml(parts(16) + " = 1.5\n[" + parts(16) + "]\n");
  base::demand_shallow_toml("x = [" + repeated("1.5, ", 1000) + "]\n" + repeated("a.b = 1\n", 1000));
  for (const std::string quote : {"\"", "'", "\"\"\"", "'''"})
    base::demand_shallow_toml("x = " + quote + parts(100) + quote + "\n");
  base::demand_shallow_toml("x = \"\"\"\n" + parts(100) + "\n\"\"\"\n# " + parts(100) + repeated("[", 100));
  for (const auto& text : {parts(17) + " = 1", "[" + parts(17) + "]", "x = {" + parts(17) + " = 1}", "x = \"a\"\n" + parts(17),
                           repeated("\"a\".", 17), repeated("'a' . ", 17), "x = " + repeated("[", 65),
                           "x = " + repeated("{a = ", 65), std::string(2'000'000, '#')})
    EXPECT_THROW(base::demand_shallow_toml(text), Error) << text.substr(0, 100);
}

}  // namespace
}  // namespace terrace
