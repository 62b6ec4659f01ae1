// The known answers are those of the XXH64 reference, seed 0.
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/examples/lm/weights/weight_hash.h>

namespace terrace::lm {
namespace {

TEST(WeightHash, OfNothingIsTheKnownAnswer) { EXPECT_EQ(WeightHash().hex(), "ef46db3751d8e999"); }

TEST(WeightHash, OfSeveralPartsIsTheHashOfTheirHashes) {
  std::vector<WeightHash> parts(2);
  parts[1].add(std::vector<float>{1, 2});
  const std::uint64_t values[] = {parts[0].value(), parts[1].value()};
  double as_doubles[2];
  std::memcpy(as_doubles, values, sizeof values);
  WeightHash of_values;
  of_values.add(as_doubles);
  EXPECT_EQ(of_values.hex(), combined(parts));
  EXPECT_EQ(parts[1].hex(), combined(std::span(parts).subspan(1)));
}

TEST(WeightHash, IsOverLittleEndianBytes) {
  const char text[] = "abcdefgh";
  float two[2];
  double one = 0;
  std::memcpy(two, text, 8);
  std::memcpy(&one, text, 8);
  WeightHash floats, doubles;
  floats.add(two);
  doubles.add(std::span<const double>(&one, 1));
  EXPECT_EQ(floats.hex(), doubles.hex());
  EXPECT_EQ(floats.hex(), "3ad351775b4634b7");
}

TEST(WeightHash, DoesNotDependOnHowTensorsAreCut) {
  const unsigned seed = 5;
  std::mt19937 random(seed);
  std::vector<float> values(10000);
  for (auto& v : values) v = static_cast<float>(random()) - 2e9F;
  WeightHash whole;
  whole.add(values);
  for (int run = 0; run < 20; ++run) {
    WeightHash cut;
    for (std::size_t begin = 0; begin < values.size();) {
      const std::size_t count = std::min<std::size_t>(random() % 700, values.size() - begin);
      cut.add(std::span<const float>(values).subspan(begin, count));
      begin += count;
    }
    EXPECT_EQ(cut.value(), whole.value()) << "seed " << seed << ", run " << run;
  }
}

TEST(WeightHash, SeesOneBitAndTheOrder) {
  std::vector<bf16> a{bf16(1.0F), bf16(2.0F)}, b{bf16(2.0F), bf16(1.0F)}, c = a;
  c[1].bits ^= 1;
  WeightHash ha, hb, hc;
  ha.add(a), hb.add(b), hc.add(c);
  EXPECT_NE(ha.hex(), hb.hex());
  EXPECT_NE(ha.hex(), hc.hex());
  EXPECT_EQ(ha.hex(), ha.hex());  // asking does not change it
}

}  // namespace
}  // namespace terrace::lm
