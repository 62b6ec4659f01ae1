// Attention by cuDNN with a fake library that computes its graph: the graph is attention; calls are cut to fit and write to the
// right places; the choice of kernel is made once and recorded; and each call of the library may fail.
#include <terrace/core/cuda/cudnn/attention.h>

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/tests/math/math_fixture.h>
#include <terrace/tests/support/gpu/fake_cudnn.h>

#include <terrace/tests/cuda/attention_oracle.h>

namespace terrace::test {
namespace {

using cuda::cudnn::Attention;
using cuda::cudnn::AttentionCall;
using cuda::cudnn::AttentionOptions;
using cuda::cudnn::AttentionRecord;
using cuda::cudnn::Use;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

FakeCudnn& fake_cudnn() {
  void* const library = ::dlopen(TERRACE_FAKE_CUDNN, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr);
  return *reinterpret_cast<FakeCudnn* (*)()>(::dlsym(library, "terrace_fake_cudnn"))();
}

class CudnnAttention : public MathTest {
 protected:
  CudnnAttention() { fake = FakeCudnn(); }
  ~CudnnAttention() override { EXPECT_EQ(fake.objects, 0) << "objects of the library that were left"; }

  static AttentionOptions options(Use use, std::size_t room_bytes = std::size_t{1} << 20) {
    return {.use = use, .library = TERRACE_FAKE_CUDNN, .room_bytes = room_bytes};
  }
  struct Case {
    AttentionShape shape;
    Tensor qkv, dout, out, lse, dqkv;
    AttentionOracle want;

    [[nodiscard]] AttentionCall call(bool gradient) {
      return {.gradient = gradient, .shape = shape, .out = out, .lse = lse, .qkv = qkv, .dqkv = dqkv, .dout = dout};
    }
  };
  Case make(const AttentionShape& s) {
    const Shape wide{s.batch * s.seq, (s.heads + 2 * s.kv_heads) * s.head_dim}, narrow{s.batch * s.seq, s.heads * s.head_dim};
    auto qkv = random(DType::bf16, wide, -2, 2), dout = random(DType::bf16, narrow, -1, 1);
    AttentionOracle want(s, qkv.values(), dout.values());
    return {s,
            std::move(qkv),
            std::move(dout),
            Tensor(DType::bf16, narrow),
            Tensor(DType::fp32, {s.batch, s.heads, s.seq}),
            Tensor(DType::bf16, wide),
            std::move(want)};
  }
  // Runs with a workspace between guards; counts in `ours` how often terrace's own kernels are used.
  void run(Attention& attention, const AttentionCall& call) {
    constexpr std::size_t kGuard = 64;
    std::vector<std::byte> memory(attention.room_bytes() + 2 * kGuard + 256, std::byte{0x5a});
    auto* const room = memory.data() + kGuard + (256 - reinterpret_cast<std::uintptr_t>(memory.data() + kGuard) % 256);
    attention.run(call, this, room, [&] { ++ours; });
    for (auto* guard = memory.data(); guard != room; ++guard) ASSERT_EQ(*guard, std::byte{0x5a});
    for (auto* guard = room + attention.room_bytes(); guard != memory.data() + memory.size(); ++guard)
      ASSERT_EQ(*guard, std::byte{0x5a});
  }
  FakeCudnn& fake = fake_cudnn();
  int ours = 0;
};

const AttentionShape kGrouped{2, 19, 6, 2, 32};

// Separate keys for every head; groups; several sequences; one position; odd lengths.
TEST_F(CudnnAttention, EqualsTheOracle) {
  for (const AttentionShape& s :
       {kGrouped, AttentionShape{1, 33, 3, 3, 64}, AttentionShape{3, 1, 2, 1, 96}, AttentionShape{1, 40, 4, 1, 128}}) {
    auto c = make(s);
    Attention attention(options(Use::always));
    run(attention, c.call(false));
    expect_near(c.out, c.want.out, tolerance(DType::bf16), "out");
    expect_near(c.lse, c.want.lse, tolerance(DType::fp32), "lse");
    run(attention, c.call(true));
    expect_near(c.dqkv, c.want.dqkv, 2 * tolerance(DType::bf16), "dqkv");
    EXPECT_EQ(ours, 0);
  }
  EXPECT_THAT(fake.ran, Each("engine 6, knobs 24=26"));
}

// With space for everything at once down to space for one group of one sequence: the same bits, in more calls.
TEST_F(CudnnAttention, ACallThatDoesNotFitIsCut) {
  const AttentionShape s{4, 17, 8, 4, 32};
  auto whole = make(s);
  Attention all_at_once(options(Use::always));
  run(all_at_once, whole.call(false)), run(all_at_once, whole.call(true));
  EXPECT_EQ(fake.executed, 2);
  const std::size_t group_bytes = 2 * 2 * 17 * 17 + 256 + 256;  // scores, the library's own workspace, and inner products
  for (const auto& [groups, calls] : {std::pair<std::size_t, int>{8, 2}, {4, 4}, {2, 8}, {1, 16}}) {
    SCOPED_TRACE(groups);
    auto cut = whole.call(true);
    Tensor dqkv(DType::bf16, whole.dqkv.view().shape);
    cut.dqkv = dqkv;
    Attention attention(options(Use::always, groups * group_bytes));
    fake.executed = 0;
    run(attention, cut);
    EXPECT_EQ(fake.executed, calls);
    EXPECT_EQ(dqkv.values(), whole.dqkv.values());
    EXPECT_THAT(attention.lines(), HasSubstr("; " + std::to_string(calls) + " calls with"));
  }
  // Not even one group fits. This follows from the shape, so terrace's kernels are used and the record says so.
  Attention none(options(Use::always, 1024));
  run(none, whole.call(true));
  EXPECT_EQ(ours, 1);
  EXPECT_THAT(none.lines(), HasSubstr("gradient: by our kernels; cuDNN would write down 1156 bytes"));
}

TEST_F(CudnnAttention, OnlyWhatItServesIsGivenToIt) {
  auto c = make({1, 5, 2, 1, 40});
  Attention attention(options(Use::always));
  run(attention, c.call(false));
  Attention never(options(Use::never));
  EXPECT_EQ(never.room_bytes(), 0U);
  auto served = make(kGrouped);
  run(never, served.call(false));
  EXPECT_EQ(ours, 2);
  EXPECT_EQ(fake.calls, 0);
  auto call = served.call(false);
  call.qkv.data += 2;
  EXPECT_THROW(run(attention, call), std::logic_error);
}

TEST_F(CudnnAttention, AnEngineWithoutOneOrderOfSumsIsPassedOver) {
  fake.nondeterministic = true;
  auto c = make(kGrouped);
  {
    Attention attention(options(Use::always));
    run(attention, c.call(true));
    EXPECT_THAT(fake.ran, ElementsAre("engine 7, knobs 24=26 40=2"));
  }
  // An engine that does not store the scores adds in an unspecified order, whatever its attributes say.
  fake.scores = 1;
  Attention attention(options(Use::always));
  EXPECT_THAT([&] { run(attention, c.call(true)); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("seq 19, 6 heads, 2 kv heads, dim 32] gradient"),
                                                  HasSubstr("engine 6, knobs 24=26: it is marked as nondeterministic"),
                                                  HasSubstr("engine 7, knobs 24=26 40=2: it needs"),
                                                  HasSubstr("too few for sums in one order"), HasSubstr("unset `attention`"))));
}

TEST_F(CudnnAttention, WhatWasRecordedIsUsedAgain) {
  auto c = make(kGrouped);
  const std::string line = "attention [batch 2, seq 19, 6 heads, 2 kv heads, dim 32] forward: by ";
  const auto engine_7 = line + "cuDNN 9.17.0, engine 7, knobs 24=26 40=2; 1 call with 256 bytes of workspace\n";
  // The run's own record is used even if cuDNN is not requested now; the run's other attentions keep terrace's kernels.
  auto recorded = options(Use::never);
  recorded.run = engine_7;
  {
    Attention attention(recorded);
    run(attention, c.call(false)), run(attention, c.call(true));
    EXPECT_THAT(fake.ran, ElementsAre("engine 7, knobs 24=26 40=2"));
    EXPECT_EQ(ours, 1);
  }
  // Of the machine's profile, only choices of the same version are used, and only if cuDNN may be used.
  for (const auto& [use, text, want] :
       {std::tuple{Use::always, engine_7, "engine 6, knobs 24=26"},
        {Use::never, engine_7, ""},
        {Use::always, line + "cuDNN 9.19.0, engine 5, knobs none\n", "engine 6, knobs 24=26"},
        {Use::always, line + "cuDNN 9.19.0, engine 1, knobs none\n", "engine 1, knobs none"},
        {Use::where_faster, line + "cuDNN 9.19.0, engine 1, knobs none\n", "engine 1, knobs none"}}) {
    fake.ran.clear();
    auto profiled = options(use);
    profiled.machine = text;
    Attention attention(profiled);
    run(attention, c.call(false));
    EXPECT_EQ(fake.ran, *want ? std::vector<std::string>{want} : std::vector<std::string>{}) << text;
  }
  recorded.run = line + "our kernels; as recorded\n";
  recorded.use = Use::always;
  ours = 0;
  Attention kernels(recorded);
  run(kernels, c.call(false));
  EXPECT_EQ(ours, 1);
  // It reads back what it wrote.
  Attention first(options(Use::always));
  run(first, c.call(false)), run(first, c.call(true));
  EXPECT_TRUE(AttentionRecord(first.lines()).names_cudnn());
  EXPECT_EQ(AttentionRecord(first.lines()).of("[batch 2, seq 19, 6 heads, 2 kv heads, dim 32] gradient")->version, "9.19.0");
}

// Each document has its own length, so documents get neither a plan nor a line in the record.
TEST_F(CudnnAttention, DocumentsAreOurs) {
  auto c = make(kGrouped);
  c.shape.one_of_many = true;
  Attention attention(options(Use::always));
  run(attention, c.call(false)), run(attention, c.call(true));
  EXPECT_EQ(ours, 2);
  EXPECT_TRUE(fake.ran.empty());
  EXPECT_EQ(attention.lines(), "");
}

TEST_F(CudnnAttention, ARecordThatCannotBeKeptIsAnError) {
  auto c = make(kGrouped);
  auto recorded = options(Use::never);
  recorded.run = "attention [batch 2, seq 19, 6 heads, 2 kv heads, dim 32] forward: by cuDNN 9.17.0, engine 5, knobs none\n";
  Attention attention(recorded);
  EXPECT_THAT([&] { run(attention, c.call(false)); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("rejects the engine that is recorded"),
                                                  HasSubstr("engine 5, knobs none"), HasSubstr("there is no such engine"))));
  recorded.library = "/no/such/libcudnn.so.9";
  EXPECT_THAT([&] { Attention absent(recorded); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("this run's attention uses"), HasSubstr("algorithms.txt"))));
  for (const auto* damaged : {"attention [nothing", "attention [x]: by cuDNN 9", "attention [x]: by cuDNN 9.1.0, engine",
                              "attention [x]: by nobody", "attention [x]: by cuDNN , engine 1, knobs none"})
    EXPECT_THROW(AttentionRecord{damaged}, Error) << damaged;
}

TEST_F(CudnnAttention, TheFasterOneIsKept) {
  auto c = make(kGrouped);
  for (const double theirs_ns : {1e6, 3e6}) {
    SCOPED_TRACE(theirs_ns);
    auto timed = options(Use::where_faster);
    const auto executed = fake.executed;
    timed.time_ns = [&, before = std::int64_t{0}](void* on, const std::function<void()>& issue) mutable {
      EXPECT_EQ(on, this);
      before = fake.executed;
      issue();
      return fake.executed != before ? theirs_ns : 2e6;
    };
    ours = 0;
    Attention attention(timed);
    run(attention, c.call(false));
    const bool theirs = theirs_ns < 2e6;
    EXPECT_EQ(ours, theirs ? 4 : 5);  // one warm-up, three timed calls, then the call by the faster one
    EXPECT_EQ(fake.executed - executed, theirs ? 5 : 4);
    EXPECT_THAT(attention.lines(), HasSubstr(theirs ? ": by cuDNN 9.19.0, engine 6, knobs 24=26; 1 call with 256 bytes of "
                                                      "workspace, 1000 us, our kernels 2000 us\n"
                                                    : ": by our kernels; cuDNN 9.19.0 with engine 6, knobs 24=26 takes 3000 "
                                                      "us, our kernels 2000 us\n"));
    EXPECT_NO_THROW(AttentionRecord{attention.lines()});
  }
  fake.has_engines = false;
  Attention attention(options(Use::where_faster));
  run(attention, c.call(false));
  EXPECT_THAT(attention.lines(), HasSubstr("by our kernels; cuDNN has no engine for it"));
}

TEST_F(CudnnAttention, WithoutTheLibrary) {
  auto absent = options(Use::always);
  absent.library = "libno_such_cudnn.so.9";
  EXPECT_THAT([&] { Attention attention(absent); }, testing::ThrowsMessage<Error>(AllOf(HasSubstr("`attention`=cudnn requires"),
                                                                                        HasSubstr("libno_such_cudnn.so.9"))));
  absent.use = Use::where_faster;
  EXPECT_EQ(Attention(absent).room_bytes(), 0U);
  fake.version = 91000;
  EXPECT_THAT([&] { Attention attention(options(Use::always)); }, testing::ThrowsMessage<Error>(HasSubstr("cuDNN 9.10.0")));
  EXPECT_EQ(cuda::cudnn::parse_use(""), Use::never);
  EXPECT_EQ(cuda::cudnn::parse_use("own"), Use::never);
  EXPECT_EQ(cuda::cudnn::parse_use("cudnn"), Use::always);
  EXPECT_EQ(cuda::cudnn::parse_use("faster"), Use::where_faster);
  EXPECT_THROW(cuda::cudnn::parse_use("fastest"), Error);
}

// Whichever call of the library fails, the error names the attention, the call and the library's reason, nothing leaks, and no
// other engine is used instead.
TEST_F(CudnnAttention, EachCallMayFail) {
  auto c = make({1, 3, 2, 1, 32});
  std::int64_t failures = 0;
  for (std::int64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    bool failed = false;
    {
      Attention attention(options(Use::always));
      fake.fail_at = n;
      try {
        run(attention, c.call(true));
      } catch (const Error& error) {
        failed = true;
        EXPECT_THAT(error.what(), AllOf(HasSubstr("attention [batch 1, seq 3, 2 heads, 1 kv heads, dim 32] gradient: "),
                                        HasSubstr("cudnn"), HasSubstr("CUDNN_STATUS_INTERNAL_ERROR"), HasSubstr("made up")));
      }
    }
    ASSERT_EQ(fake.objects, 0);
    if (!failed) break;
    ++failures;
  }
  fake.fail_at = 0;
  EXPECT_GT(failures, 300);
  EXPECT_EQ(ours, 0);
}

}  // namespace
}  // namespace terrace::test
