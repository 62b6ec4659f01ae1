// Every recipe with every dtype that it supports.
#pragma once

#include <exception>
#include <string_view>
#include <vector>

#include <terrace/optimizers/recipe.h>

namespace terrace::test {

struct RecipeCase {
  std::string_view name;
  DType dtype;
};
inline std::vector<RecipeCase> recipe_cases() {
  std::vector<RecipeCase> all;
  for (const auto& recipe : rules::recipes())
    for (const auto dtype : {DType::fp32, DType::bf16, DType::fp64, DType::fp16}) try {
        (void)rules::Recipe::of(dtype, recipe.name);
        all.push_back({recipe.name, dtype});
      } catch (const std::exception&) {  // not supported together; refusals_test.cpp tests which
      }
  return all;
}

}  // namespace terrace::test
