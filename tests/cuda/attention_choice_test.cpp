// Which kernels compute attention, forward and backward: forced ones, recorded ones, or the result of a check on the GPU; and
// the check itself on an emulated GPU whose kernel is right or wrong.
#include <terrace/core/cuda/attention_choice.h>

#include <gmock/gmock.h>

#include <optional>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/cudnn/attention_record.h>

#include <terrace/tests/cuda/attention_fixture.h>
#include <terrace/tests/cuda/emulated_gpu.h>

namespace terrace::test {
namespace {

using cuda::AttentionChoice;
using cuda::AttentionKernel;
using cuda::KnownAlgorithms;
using testing::HasSubstr;

const std::string kLine = "attention bf16 forward, head dim 64: ", kByWarps = kLine + "warps\n",
                  kByWarpgroups = kLine + "warpgroups\n";
const std::string kProduct =
    "matmul [1, 1] = bf16 [1, 1] · [1, 1], to bf16, aligned to 2: algorithm 1, words 0000000000000001 0000000000000001 "
    "0000000000000001 0000000000000001 0000000000000001 0000000000000001 0000000000000001 0000000000000001\n";

// The kernel chosen for head dim 64, and the number of checks.
struct Chosen {
  AttentionKernel kernel;
  int checks = 0;
  std::string said;  // on standard error
};
Chosen choose(AttentionChoice::Given given, const KnownAlgorithms& known, const std::string& trouble = {}) {
  AttentionChoice choice(std::move(given), known);
  Chosen chosen{};
  testing::internal::CaptureStderr();
  const auto check = [&] { return ++chosen.checks, trouble; };
  try {
    chosen.kernel = choice.of({false, 64}, check);
    EXPECT_EQ(choice.of({false, 64}, check), chosen.kernel) << "the same for the life of the device";
  } catch (...) {
    testing::internal::GetCapturedStderr();
    throw;
  }
  chosen.said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(choice.algorithms(), chosen.kernel == AttentionKernel::warps ? kByWarps : kByWarpgroups);
  return chosen;
}

template <class Act>
std::pair<std::string, std::optional<ErrorKind>> failure(Act&& act) {
  try {
    act();
  } catch (const Error& e) {
    return {e.what(), e.kind()};
  }
  return {"nothing", std::nullopt};
}

TEST(AttentionChoice, ItsLinesStandBesideThoseOfCudnn) {
  const auto both = kByWarps + "attention [batch 2, seq 8, 4 heads, 2 kv heads, dim 64] forward: by our kernels\n" + kProduct;
  EXPECT_EQ(choose({}, KnownAlgorithms(both)).kernel, AttentionKernel::warps);
  EXPECT_NE(cuda::cudnn::AttentionRecord(both, "it").of("[batch 2, seq 8, 4 heads, 2 kv heads, dim 64] forward"), nullptr);
}

TEST(AttentionChoice, WarpgroupsCountOnceTheyHaveProvenThemselves) {
  const auto proven = choose({}, KnownAlgorithms());
  EXPECT_EQ(proven.kernel, AttentionKernel::warpgroups);
  EXPECT_EQ(proven.checks, 1);
  EXPECT_EQ(proven.said, "");

  const auto failed = choose({}, KnownAlgorithms(), "it is wrong");
  EXPECT_EQ(failed.kernel, AttentionKernel::warps);
  EXPECT_EQ(failed.checks, 1);
  EXPECT_THAT(failed.said, testing::AllOf(HasSubstr("warning: attention bf16 forward, head dim 64"), HasSubstr("it is wrong")));
  EXPECT_EQ(std::ranges::count(failed.said, '\n'), 1);

  const auto absent = choose({.no_warpgroups = "an older GPU"}, KnownAlgorithms());
  EXPECT_EQ(absent.kernel, AttentionKernel::warps);
  EXPECT_EQ(absent.checks, 0);
  EXPECT_EQ(absent.said, "");
}

TEST(AttentionChoice, IsForced) {
  const auto warps = choose({.forced = "warps"}, KnownAlgorithms(kByWarpgroups));
  EXPECT_EQ(warps.kernel, AttentionKernel::warps);
  const auto groups = choose({.forced = "warpgroups"}, KnownAlgorithms(kByWarps), "it is wrong");
  EXPECT_EQ(groups.kernel, AttentionKernel::warpgroups);
  EXPECT_EQ(warps.checks + groups.checks, 0);

  const auto [unknown, kind] = failure([] { AttentionChoice({.forced = "threads"}, KnownAlgorithms()); });
  EXPECT_THAT(unknown, HasSubstr("`attention-kernel`=threads: there is no such kernel"));
  EXPECT_EQ(kind, ErrorKind::refused);
  const auto [absent, absent_kind] =
      failure([] { AttentionChoice({.no_warpgroups = "an older GPU", .forced = "warpgroups"}, KnownAlgorithms()); });
  EXPECT_THAT(absent, HasSubstr("not possible here: an older GPU"));
  EXPECT_EQ(absent_kind, ErrorKind::missing);
}

// Forward and backward are chosen, checked and recorded separately. A run that recorded only the forward began when there was
// no choice for the backward.
TEST(AttentionChoice, TheBackwardIsChosenApart) {
  const std::string backward = "attention bf16 backward, head dim 64: ";
  const auto of = [](const KnownAlgorithms& known, bool is_backward, const std::string& trouble) {
    AttentionChoice choice({.library = [] { return std::string("one"); }}, known);
    testing::internal::CaptureStderr();
    const auto kernel = choice.of({is_backward, 64}, [&] { return trouble; });
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                trouble.empty() ? HasSubstr("") : HasSubstr("warning: attention bf16 backward, head dim 64"));
    return kernel;
  };
  EXPECT_EQ(of(KnownAlgorithms(kProduct + kByWarpgroups), true, ""), AttentionKernel::warps);
  EXPECT_EQ(of(KnownAlgorithms(kProduct + kByWarpgroups), false, ""), AttentionKernel::warpgroups);
  EXPECT_EQ(of(KnownAlgorithms(kProduct + kByWarps + backward + "warpgroups\n"), true, ""), AttentionKernel::warpgroups);
  EXPECT_EQ(of(KnownAlgorithms("", "library one\n" + kByWarps), true, ""), AttentionKernel::warpgroups);
  EXPECT_EQ(of(KnownAlgorithms("", "library one\n" + kByWarpgroups), true, "it is wrong"), AttentionKernel::warps);

  AttentionChoice choice({}, KnownAlgorithms());
  const auto fine = [] { return std::string(); };
  choice.of({true, 64}, fine), choice.of({false, 64}, fine);
  EXPECT_EQ(choice.algorithms(), kByWarpgroups + backward + "warpgroups\n");
}

// A run's bits must not change silently.
TEST(AttentionChoice, ARunGoesOnAsItBegan) {
  EXPECT_EQ(choose({}, KnownAlgorithms(kByWarps, kByWarpgroups)).kernel, AttentionKernel::warps);
  EXPECT_EQ(choose({}, KnownAlgorithms(kByWarps)).checks, 0);
  EXPECT_EQ(choose({}, KnownAlgorithms(kProduct)).kernel, AttentionKernel::warps) << "it began before there was a choice";
  const auto groups = choose({}, KnownAlgorithms(kProduct + kByWarpgroups, kByWarps));
  EXPECT_EQ(groups.kernel, AttentionKernel::warpgroups);
  EXPECT_EQ(groups.checks, 1) << "of this GPU";

  const auto [wrong, kind] = failure([] { choose({}, KnownAlgorithms(kByWarpgroups), "it is wrong"); });
  EXPECT_THAT(wrong, testing::AllOf(HasSubstr("head dim 64: this run began"), HasSubstr("it is wrong")));
  EXPECT_EQ(kind, ErrorKind::missing);
  const auto [absent, absent_kind] = failure([] { choose({.no_warpgroups = "an older GPU"}, KnownAlgorithms(kByWarpgroups)); });
  EXPECT_THAT(absent, HasSubstr("an older GPU"));
  EXPECT_EQ(absent_kind, ErrorKind::missing);
}

// Two runs on one machine must have the same bits, so a failed check stays recorded; it is ignored on another GPU.
TEST(AttentionChoice, TheMachinesRecordCountsForItsOwnGpu) {
  const auto on = [](const char* library) {
    return AttentionChoice::Given{.library = [library] { return std::string(library); }};
  };
  EXPECT_EQ(choose(on("one"), KnownAlgorithms("", "library one\n" + kByWarps)).kernel, AttentionKernel::warps);
  EXPECT_EQ(choose(on("two"), KnownAlgorithms("", "library one\n" + kByWarps)).kernel, AttentionKernel::warpgroups);
  const auto failed = choose(on("one"), KnownAlgorithms("", "library one\n" + kByWarpgroups), "it is wrong");
  EXPECT_EQ(failed.kernel, AttentionKernel::warps);
  EXPECT_NE(failed.said, "");
}

TEST(AttentionChoice, ADamagedLineIsRefused) {
  for (const auto& line :
       {kLine, kLine + "threads", std::string("attention bf16 forward"), kByWarps.substr(0, kByWarps.size() - 2)}) {
    EXPECT_EQ(failure([&] { KnownAlgorithms{line}; }).second, ErrorKind::corrupt) << line;
  }
}

class AttentionChoiceOnAGpu : public AttentionCase {
 protected:
  struct Outcome {
    std::string bits, algorithms, said;
    int by_warpgroups = 0;  // of all calls, including those of the check
  };
  // Makes two calls on one device. For the backward, the forward is computed on the CPU.
  Outcome run(EmulatedGpu gpu, const AttentionShape& s, const Tensor& qkv, const Tensor* dout = nullptr) {
    auto f = cpu_forward(s, qkv);
    Tensor dqkv(qkv.dtype(), qkv_shape(s));
    std::atomic<int> issued = 0;
    gpu.issued_by_warpgroups = &issued;
    testing::internal::CaptureStderr();
    ThreadPool pool{2};
    const auto device = make_emulated_gpu(pool, gpu);
    const auto on = device->make_stream("test");
    std::string again;
    for (auto* const bits : {&again, &outcome.bits}) {
      auto& result = dout ? dqkv : f.out;
      result.poison();
      if (dout) {
        device->math().attention_grad(*on, s, dqkv, *dout, f.out, f.lse, qkv);
      } else {
        device->math().attention(*on, s, f.out, f.lse, qkv);
      }
      on->synchronize();
      *bits = result.bits();
    }
    EXPECT_TRUE(again == outcome.bits) << "the same bits, before and after the choice";
    outcome.algorithms = device->math().algorithms();
    outcome.said = testing::internal::GetCapturedStderr();
    outcome.by_warpgroups = issued;
    return outcome;
  }
  void expect_that_the_check_decides(const std::string& subject, const std::string& what, bool backward) {
    const AttentionShape s{1, 150, 2, 1, 64};
    const auto qkv = random(DType::bf16, qkv_shape(s), -2, 2);
    const auto given = random(DType::bf16, {s.batch * s.seq, s.heads * s.head_dim}, -2, 2);
    const auto* const dout = backward ? &given : nullptr;
    const auto warps = run({.kernel = "warps"}, s, qkv, dout), groups = run({.kernel = "warpgroups"}, s, qkv, dout);
    EXPECT_EQ(warps.by_warpgroups, 0);
    EXPECT_EQ(groups.by_warpgroups, 2);
    EXPECT_EQ(warps.algorithms, subject + ": warps\n");

    const auto right = run({}, s, qkv, dout);
    EXPECT_EQ(right.by_warpgroups, 4) << "twice in the check, and both calls";
    EXPECT_TRUE(right.bits == groups.bits);
    EXPECT_EQ(right.algorithms, subject + ": warpgroups\n");
    EXPECT_EQ(right.said, "");
    const auto none = run({.warpgroups = Warpgroups::none}, s, qkv, dout);
    EXPECT_EQ(none.by_warpgroups, 0);
    EXPECT_TRUE(none.bits == warps.bits);
    EXPECT_EQ(none.said, "");
    for (const auto& [broken, text] : {std::pair{Warpgroups::wrong, "its " + what + " differs by up to"},
                                       std::pair{Warpgroups::unwritten, std::string("is NaN")},
                                       std::pair{Warpgroups::unsteady, std::string("its second run gives other bits")},
                                       std::pair{Warpgroups::refused, std::string("no kernel image")}}) {
      const auto failed = run({.warpgroups = broken}, s, qkv, dout);
      EXPECT_LE(failed.by_warpgroups, 2) << text << ": in the check only";
      EXPECT_TRUE(failed.bits == warps.bits) << text;
      EXPECT_EQ(failed.algorithms, subject + ": warps\n") << text;
      EXPECT_THAT(failed.said, HasSubstr(text));
    }
  }
  Outcome outcome;
};

TEST_F(AttentionChoiceOnAGpu, TheCheckDecides) {
  expect_that_the_check_decides("attention bf16 forward, head dim 64", "output", false);
}
TEST_F(AttentionChoiceOnAGpu, TheCheckDecidesOfTheBackward) {
  expect_that_the_check_decides("attention bf16 backward, head dim 64", "gradient of values", true);
}

TEST_F(AttentionChoiceOnAGpu, EveryHeadDimIsChecked) {
  for (const std::int64_t head_dim : {96, 128}) {
    const AttentionShape other{1, 130, 1, 1, head_dim};
    const auto of = random(DType::bf16, qkv_shape(other), -2, 2), dout = random(DType::bf16, {130, head_dim}, -2, 2);
    const auto dim = std::to_string(head_dim);
    const auto chosen = run({}, other, of), backward = run({}, other, of, &dout);
    EXPECT_EQ(chosen.algorithms, "attention bf16 forward, head dim " + dim + ": warpgroups\n");
    EXPECT_EQ(chosen.by_warpgroups, 4);
    EXPECT_EQ(backward.algorithms, "attention bf16 backward, head dim " + dim + ": warpgroups\n");
    EXPECT_EQ(backward.by_warpgroups, 4);
  }
  const AttentionShape small{1, 40, 1, 1, 32};  // for this head dim there is no choice
  EXPECT_EQ(run({}, small, random(DType::bf16, qkv_shape(small), -2, 2)).algorithms, "");
}

}  // namespace
}  // namespace terrace::test
