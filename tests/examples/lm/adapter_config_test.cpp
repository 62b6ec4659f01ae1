// PEFT's adapter_config.json: which of its settings agree with the adapters that terrace trains.
#include <gmock/gmock.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/models/adapter_config.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

class AdapterConfig : public FolderTest {
 protected:
  std::string refusal(const nlohmann::json& config, std::int64_t rank, double alpha) {
    const auto file = folder_ / "adapter_config.json";
    std::ofstream(file) << config;
    return refusal_of([&] { lm::demand_adapter_config(file, rank, alpha, {}); });
  }
};

// rsLoRA divides alpha by the root of the rank, so it is LoRA with another alpha.
TEST_F(AdapterConfig, RsLoraIsLoraWithAnotherAlpha) {
  const nlohmann::json config{{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}, {"use_rslora", true}};
  EXPECT_THAT(refusal(config, 8, 16),
              testing::HasSubstr("lora_alpha is 16 with use_rslora, which is 45.254833995939045 without "
                                 "it, and this run has 16\n  give --lora-alpha 45.254833995939045"));
  EXPECT_EQ("", refusal(config, 8, 45.254833995939045));
  auto plain = config;
  plain["use_rslora"] = false;
  EXPECT_EQ("", refusal(plain, 8, 16));
  plain["use_rslora"] = 1;
  EXPECT_THAT(refusal(plain, 8, 16), testing::HasSubstr("use_rslora is neither true nor false"));
  plain["use_rslora"] = nullptr, plain["use_dora"] = 1;
  EXPECT_THAT(refusal(plain, 8, 16), testing::HasSubstr("use_dora is not false"));
}

}  // namespace
}  // namespace terrace::test
