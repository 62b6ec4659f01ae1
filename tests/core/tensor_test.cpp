#include <terrace/core/math/tensor.h>

#include <gtest/gtest.h>

#include <vector>

namespace terrace {

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{768, 2304}).elements(), 768 * 2304);
  EXPECT_EQ((Shape{3, 0}).elements(), 0);
  EXPECT_EQ(to_string(Shape{768, 2304}), "[768, 2304]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  EXPECT_THROW((Shape{1, 2, 3, 4, 5}), std::logic_error);
}

TEST(TensorView, KnowsItsBytesAndItsType) {
  std::vector<float> values(6);
  const TensorView view{reinterpret_cast<std::byte*>(values.data()), DType::fp32, {2, 3}};
  EXPECT_EQ(view.bytes(), 24U);
  EXPECT_EQ(view.as<float>(), values.data());
  EXPECT_THROW((void)view.as<bf16>(), std::logic_error);
  EXPECT_TRUE(TensorView{}.empty());
}

}  // namespace terrace
