// What every communicator promises. Run alone, this program tests the backends of one process; under mpirun it tests `mpi`,
// with each process as one rank.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <terrace/core/base/error.h>
#include <terrace/parallel/comm/agree.h>
#include <terrace/tests/doubles/faults.h>
#include <terrace/tests/doubles/ledger.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/one_in.h>

#include <terrace/tests/parallel/comm/backends.h>
#include <terrace/tests/parallel/comm/oracle.h>
#include <terrace/tests/parallel/comm/rank_group.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;
using test::Buffer;
using test::error_of;
using test::Rank;
using testing::HasSubstr;

std::uint64_t first_seed() { return test::number_from_environment("TERRACE_SEED", 20261121); }

// Data that all ranks of a process need, made by the first that asks. Keeps two rounds; a rank that is farther behind makes its
// data again.
template <class T>
class SharedByRanks {
 public:
  std::shared_ptr<const T> of_round(std::uint64_t round, const std::function<T()>& make) {
    const std::scoped_lock lock(mutex_);
    auto& made = made_[round];
    if (!made) made = std::make_shared<const T>(make());
    const auto result = made;
    if (made_.size() > 2) made_.erase(made_.begin());
    return result;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<const T>> made_;
};
using Contributions = SharedByRanks<std::vector<Buffer>>;

comm::Bytes bytes_of(Buffer& buffer) { return buffer; }

class CommunicatorContract : public testing::TestWithParam<test::Backend> {
 protected:
  // Runs the body on all ranks; none may throw.
  void run(const std::function<void(Rank&)>& body) {
    const auto outcome = test::on_ranks(GetParam(), {.time_limit = 60s}, body);
    for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_EQ("", outcome[r]) << "rank " << r;
  }
};

std::size_t random_count(std::mt19937_64& random) {
  switch (random() % 6) {
    case 0: return random() % 3;
    case 1: return 1 + random() % 70;
    case 5: return 1 + random() % 200'000;
    default: return 1 + random() % 3'000;
  }
}

comm::Reduction random_reduction(std::mt19937_64& random) {
  constexpr std::array<std::pair<DType, DType>, 4> kTypes = {
      std::pair{DType::fp32, DType::fp32}, {DType::fp64, DType::fp64}, {DType::bf16, DType::bf16}, {DType::bf16, DType::fp32}};
  const auto [from, to] = kTypes[random() % 4];
  return {.from = from,
          .to = to,
          .fold = random() % 3 == 0 ? comm::Fold::max : comm::Fold::sum,
          .onto = random() % 3 == 0,
          .order = random() % 4 == 0 ? comm::SumOrder::ranks : comm::SumOrder::machines};
}

// The result equals the specification bit for bit, so all backends are equal, and it is near the exact sum.
void expect_folded(const comm::Reduction& r, const std::vector<Buffer>& from, std::size_t begin, std::size_t count,
                   const Buffer& onto, comm::ConstBytes got, const test::MachineSizes& machines, const std::string& what) {
  const auto want = test::fold_oracle(r, from, begin, count, onto, machines);
  ASSERT_EQ(want.size(), got.size()) << what;
  if (!want.empty() && std::memcmp(want.data(), got.data(), want.size()) != 0) {
    const Buffer copy(got.begin(), got.end());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(test::value_at(want, r.to, i), test::value_at(copy, r.to, i)) << what << ", element " << i << " of " << count;
    }
    FAIL() << what << ": same values, other bits";
  }
  const double tolerance = r.to == DType::bf16 ? 1.0 / 256 : r.from == DType::fp64 ? 1e-14 : 2e-6;
  for (std::size_t i = 0; r.fold == comm::Fold::sum && i < count; i += 97) {
    double sum = r.onto ? test::value_at(onto, r.to, i) : 0, largest = std::abs(sum);
    for (const auto& contribution : from) {
      const double x = test::value_at(contribution, r.from, begin + i);
      sum += x;
      largest += std::abs(x);
    }
    ASSERT_NEAR(sum, test::value_at(want, r.to, i), tolerance * largest) << what << ", element " << i;
  }
}

// Results larger than every cache may be written another way: the bits are the same wherever the result begins, and nothing
// beside it is written.
TEST_P(CommunicatorContract, LargeReductionsHaveOneOrder) {
  // On a GPU, results are sums of many pieces; here of fewer, because the kernels are emulated one thread at a time.
  const std::size_t block = (GetParam().name == "nccl" ? 64 * kKiB : 8 * kMiB) / sizeof(float) + 77;
  run([block, each = GetParam().ranks_per_machine](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    auto& comm = *rank.comm;
    const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
    constexpr std::array<float, 5> kScales = {1, 0x1p-3F, 0x1p-11F, 0x1p-7F, 0x1p-16F};
    const auto value = [&](std::size_t of, std::size_t i) {
      return static_cast<float>((i * 2654435761U + of * 40503U) >> 8U & 0xffffU) * kScales.at((i + of) % kScales.size());
    };
    const auto machines = test::machine_sizes(ranks, each);
    const auto sum = [&](std::size_t i) {
      return test::element_oracle<float>(comm::Fold::sum, machines, ranks, nullptr, [&](std::size_t r) { return value(r, i); });
    };
    std::vector<float> from(block * ranks), to(block + 2, -1.0F);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = value(me, i);
    const auto bytes = [](std::span<float> numbers) { return std::as_writable_bytes(numbers); };
    const auto expect = [&](std::size_t begin, const std::string& what) {
      for (std::size_t i = 0; i < block; ++i) ASSERT_EQ(sum(begin + i), to[i + 1]) << what << ", element " << i;
      ASSERT_TRUE(to.front() == -1.0F && to.back() == -1.0F) << what << " wrote beside its result";
    };
    const auto r = comm::Reduction::sum(DType::fp32);
    comm.reduce_scatter(*stream, r, bytes(from), bytes(std::span(to).subspan(1, block)));
    stream->synchronize();
    expect(me * block, "reduce-scatter");
    comm.all_reduce(*stream, r, bytes(std::span(from).first(block)), bytes(std::span(to).subspan(1, block)));
    stream->synchronize();
    expect(0, "all-reduce");
  });
}

// An element of such a sum is a packed block, which no backend may split.
TEST_P(CommunicatorContract, PackedBlocksHaveOneOrderBitForBit) {
  // Enough for several staging pieces; fewer on GPUs, whose kernels are emulated one thread at a time.
  const bool on_gpus = GetParam().name == "nccl";
  const std::size_t most = on_gpus ? 60 : 1500, usual = on_gpus ? 4 : 40;
  Contributions contributions;
  run([&contributions, most, usual, each_machine = GetParam().ranks_per_machine](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    auto& comm = *rank.comm;
    const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
    for (std::uint64_t round = 0; round < (test::long_form() ? 12 : 5); ++round) {
      const auto seed = first_seed() + round * 1000;
      std::mt19937_64 random(seed);  // the same choices on all ranks
      auto r = comm::Reduction::sum_of_blocks();
      const auto kind = random() % 3;
      r.onto = kind == 0 && random() % 2 == 0;
      const auto each = round == 3 ? most : random() % usual, blocks = kind == 0 ? each * ranks : each;
      const auto what = "seed " + std::to_string(seed) + ", " + to_string(r) + ", " + std::to_string(blocks) + " blocks";
      const auto made = contributions.of_round(round, [&] {
        std::vector<Buffer> all;
        for (std::size_t s = 0; s < ranks; ++s)
          all.push_back(test::pack_oracle(test::random_floats(blocks * test::kOracleBlock, seed + s)));
        return all;
      });
      const auto& from = *made;
      auto to = test::random_floats(each * test::kOracleBlock, seed + 500 + me);
      const auto want = test::fold_blocks_oracle(from, kind == 0 ? me * each : 0, each, r.onto ? to : std::vector<float>{},
                                                 test::machine_sizes(ranks, each_machine));
      const comm::Bytes out{reinterpret_cast<std::byte*>(to.data()), to.size() * sizeof(float)};
      if (kind == 0) comm.reduce_scatter(*stream, r, from[me], out);
      if (kind == 1) comm.all_reduce(*stream, r, from[me], out);
      if (kind == 2) comm.reduce(*stream, r, from[me], out, 0);
      stream->synchronize();
      if (kind == 2 && me != 0) continue;
      ASSERT_EQ(want, to) << what;
    }
  });
}

TEST_P(CommunicatorContract, ReductionsHaveOneOrderBitForBit) {
  const std::size_t most = GetParam().name == "nccl" ? 20'000 : 200'000;  // emulated kernels are slow
  Contributions contributions;
  run([&contributions, most, each = GetParam().ranks_per_machine](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    auto& comm = *rank.comm;
    const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
    const auto machines = test::machine_sizes(ranks, each);
    for (std::uint64_t round = 0; round < (test::long_form() ? 60 : 20); ++round) {
      const auto seed = first_seed() + round * 1000;
      std::mt19937_64 random(seed);  // the same choices on all ranks
      auto r = random_reduction(random);
      auto count = random_count(random) % most;
      const int root = static_cast<int>(random() % ranks), kind = static_cast<int>(random() % 3);
      if (kind == 0) count *= ranks;
      if (kind == 1) r.onto = false;
      const bool in_place = random() % 2 == 0 && r.from == r.to && !r.onto;
      const auto what = "seed " + std::to_string(seed) + ", " + to_string(r) + (in_place ? ", in place" : "");
      const auto made = contributions.of_round(round, [&] {
        std::vector<Buffer> all;
        for (std::size_t s = 0; s < ranks; ++s) all.push_back(test::random_elements(r.from, count, seed + s));
        return all;
      });
      const auto& from = *made;
      Buffer mine = from[me];
      const auto block = count / ranks;
      Buffer to = test::random_elements(r.to, kind == 0 ? block : count, seed + 500 + me);
      const Buffer onto = to;
      comm::Bytes out = to;
      if (in_place)
        out = kind == 0 ? bytes_of(mine).subspan(me * block * size_of(r.from), block * size_of(r.from)) : bytes_of(mine);
      switch (kind) {
        case 0: comm.reduce_scatter(*stream, r, mine, out); break;
        case 1: comm.all_reduce(*stream, r, mine, out); break;
        default: comm.reduce(*stream, r, mine, out, root);
      }
      stream->synchronize();
      if (kind == 2 && comm.rank() != root) {
        ASSERT_TRUE(in_place ? mine == from[me] : to == onto) << what << ": touched on another rank than the root";
        continue;
      }
      expect_folded(r, from, kind == 0 ? me * block : 0, kind == 0 ? block : count, onto, out, machines, what);
    }
  });
}

// A NaN of any rank survives, in both orders; the sum of infinities of both signs is NaN.
TEST_P(CommunicatorContract, NotANumberStaysNotANumber) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    auto& comm = *rank.comm;
    const int ranks = comm.size();
    constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
    for (const auto order : {comm::SumOrder::machines, comm::SumOrder::ranks})
      for (int source = 0; source < ranks; ++source) {
        const bool mine = comm.rank() == source, next = comm.rank() == (source + 1) % ranks;
        std::vector<float> greatest{mine ? kNaN : 1, mine ? kInfinity : kNaN, mine ? -kInfinity : -1}, sum = greatest;
        sum[1] = mine ? kInfinity : next ? -kInfinity : 0;
        for (const auto fold : {comm::Fold::max, comm::Fold::sum}) {
          const auto bytes = std::as_writable_bytes(std::span(fold == comm::Fold::max ? greatest : sum));
          comm.all_reduce(*stream, {.fold = fold, .order = order}, bytes, bytes);
        }
        stream->synchronize();
        EXPECT_TRUE(std::isnan(greatest[0]) && std::isnan(sum[0])) << "from rank " << source;
        EXPECT_EQ(std::isnan(greatest[1]), ranks > 1);
        EXPECT_EQ(std::isnan(sum[1]), ranks > 1);
        EXPECT_EQ(greatest[2], ranks > 1 ? -1 : -kInfinity);
        EXPECT_EQ(sum[2], -kInfinity);
      }
  });
}

TEST_P(CommunicatorContract, BytesArriveWhereTheyBelong) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    auto& comm = *rank.comm;
    const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
    for (std::uint64_t round = 0; round < (test::long_form() ? 60 : 20); ++round) {
      const auto seed = first_seed() + round * 100'000;
      std::mt19937_64 random(seed);
      const auto bytes = random_count(random) * (random() % 4 == 0 ? 7 : 1);  // some are too large for one piece
      const auto block = [&](std::size_t from, std::size_t to, std::size_t size) {
        return test::random_bytes(size, seed + 1 + from * 64 + to);
      };
      const auto kind = random() % 3;
      const auto root = random() % ranks;
      const bool in_place = random() % 2 == 0;
      SCOPED_TRACE("seed " + std::to_string(seed));
      if (kind == 0) {
        Buffer mine = block(me, 0, bytes), all(bytes * ranks), want;
        for (std::size_t r = 0; r < ranks; ++r) {
          const auto theirs = block(r, 0, bytes);
          want.insert(want.end(), theirs.begin(), theirs.end());
        }
        const auto own = bytes_of(all).subspan(me * bytes, bytes);
        if (in_place) std::ranges::copy(mine, own.begin());
        comm.all_gather(*stream, in_place ? comm::ConstBytes(own) : comm::ConstBytes(mine), all);
        stream->synchronize();
        ASSERT_TRUE(want == all) << "all-gather of " << bytes << " bytes a rank";
      } else if (kind == 1) {
        Buffer data = me == root ? block(root, 0, bytes) : Buffer(bytes);
        comm.broadcast(*stream, data, static_cast<int>(root));
        stream->synchronize();
        ASSERT_TRUE(block(root, 0, bytes) == data) << "broadcast of " << bytes << " bytes";
      } else {
        std::vector<Buffer> out, in;
        std::vector<comm::ConstBytes> from;
        std::vector<comm::Bytes> to;
        const auto size = [&](std::size_t a, std::size_t b) { return (a * 7 + b * 13) % 5 == 0 ? 0 : bytes + a * 3 + b; };
        for (std::size_t r = 0; r < ranks; ++r) {
          out.push_back(block(me, r, size(me, r)));
          in.emplace_back(size(r, me));
        }
        for (auto& b : out) from.emplace_back(b);
        for (auto& b : in) to.emplace_back(b);
        comm.all_to_all(*stream, from, to);
        stream->synchronize();
        for (std::size_t r = 0; r < ranks; ++r) ASSERT_TRUE(block(r, me, size(r, me)) == in[r]) << "all-to-all from rank " << r;
      }
    }
  });
}

TEST_P(CommunicatorContract, LanesNeverWaitForEachOther) {
  run([](Rank& rank) {
    constexpr std::size_t kLanesEach = 3, kMessages = 6;
    const auto ranks = static_cast<std::size_t>(rank.comm->size()), me = static_cast<std::size_t>(rank.comm->rank());
    const auto comm = with_faults(std::move(rank.comm), {.seed = first_seed(), .longest_delay = 2ms});
    struct Lane {
      std::unique_ptr<Stream> out, in;
      std::vector<Buffer> sent, received;
    };
    const auto message = [&](std::size_t from, std::size_t to, std::size_t lane, std::size_t i) {
      const auto seed = first_seed() + ((from * ranks + to) * kLanesEach + lane) * kMessages + i;
      std::mt19937_64 random(seed);
      return test::random_bytes(random_count(random), seed);
    };
    std::vector<Lane> lanes(ranks * kLanesEach);
    for (auto& lane : lanes) {
      lane.out = rank.device.make_stream("send");
      lane.in = rank.device.make_stream("receive");
    }
    // Every rank sends to every rank, itself included, all lanes of one message before the next message; no fixed order of the
    // lanes would work.
    for (std::size_t i = 0; i < kMessages; ++i) {
      for (std::size_t peer = 0; peer < ranks; ++peer) {
        for (std::size_t l = 0; l < kLanesEach; ++l) {
          auto& lane = lanes[peer * kLanesEach + l];
          lane.sent.reserve(kMessages);
          lane.received.reserve(kMessages);
          lane.sent.push_back(message(me, peer, l, i));
          lane.received.emplace_back(message(peer, me, l, i).size());
          comm->send(*lane.out, lane.sent.back(), static_cast<int>(peer), static_cast<int>(l));
          comm->receive(*lane.in, lane.received.back(), static_cast<int>(peer), static_cast<int>(l));
        }
      }
    }
    for (auto& lane : lanes) {
      lane.out->synchronize();
      lane.in->synchronize();
    }
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      for (std::size_t l = 0; l < kLanesEach; ++l) {
        for (std::size_t i = 0; i < kMessages; ++i) {
          ASSERT_TRUE(message(peer, me, l, i) == lanes[peer * kLanesEach + l].received[i])
              << "seed " << first_seed() << ", message " << i << " from rank " << peer << " on lane " << l;
        }
      }
    }
  });
}

TEST_P(CommunicatorContract, CollectivesOnSeveralStreamsRunInTheOrderOfIssue) {
  run([](Rank& rank) {
    const auto ranks = rank.comm->size();
    const int me = rank.comm->rank();
    const auto comm = with_faults(std::move(rank.comm), {.seed = first_seed(), .longest_delay = 300us});
    std::vector<std::unique_ptr<Stream>> streams;
    for (int s = 0; s < 3; ++s) streams.push_back(rank.device.make_stream("comm"));
    std::vector<std::vector<float>> data;
    for (int i = 0; i < 40; ++i) data.emplace_back(1 + i % 5, static_cast<float>(i + me));
    for (int i = 0; i < 40; ++i) {
      auto bytes = std::as_writable_bytes(std::span(data[static_cast<std::size_t>(i)]));
      comm->all_reduce(*streams[static_cast<std::size_t>((i * 7 + me) % 3)], comm::Reduction::sum(DType::fp32), bytes, bytes);
      if (i % 10 == 9) comm->barrier(*streams[0]);
    }
    for (auto& stream : streams) stream->synchronize();
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(data[static_cast<std::size_t>(i)].front(), static_cast<float>(i * ranks + ranks * (ranks - 1) / 2)) << i;
    }
  });
}

TEST_P(CommunicatorContract, SplitsByColorInTheOrderOfKeys) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    const int ranks = rank.comm->size(), me = rank.comm->rank();
    const auto half = rank.comm->split(me % 2, -me, "half");  // descending
    ASSERT_NE(nullptr, half);
    EXPECT_EQ("half", half->name());
    const int members = (ranks + 1 - me % 2) / 2;
    EXPECT_EQ(members, half->size());
    EXPECT_EQ(members - 1 - me / 2, half->rank());
    std::vector<std::int32_t> all(static_cast<std::size_t>(members));
    const std::int32_t mine = me;
    half->all_gather(*stream, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    stream->synchronize();
    for (int i = 0; i < members; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], me % 2 + 2 * (members - 1 - i));
    const auto only_first = rank.comm->split(me == 0 ? 0 : -1, 0, "first");
    EXPECT_EQ(me == 0, only_first != nullptr);
  });
}

TEST_P(CommunicatorContract, LedgerIsTheFormula) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    const auto d = static_cast<std::uint64_t>(rank.comm->size());
    const int me = rank.comm->rank();
    Ledger ledger;
    const auto world = with_ledger(std::move(rank.comm), ledger);
    const auto dp = world->split(0, me, "dp");
    const std::uint64_t block = 1000, all = block * d, e = 4;  // Φ elements, Φ = all
    Buffer parameters(all * e), gradients(all * e), shard(block * e);
    // A step of ZeRO-3: gather forward, gather backward, reduce-scatter; 3·(d−1)/d·Φ·e.
    dp->all_gather(*stream, shard, parameters);
    dp->all_gather(*stream, shard, parameters);
    dp->reduce_scatter(*stream, comm::Reduction::sum(DType::fp32), gradients, shard);
    const auto gathered = ledger.of("dp", comm::Operation::all_gather),
               reduced = ledger.of("dp", comm::Operation::reduce_scatter);
    EXPECT_EQ(3 * (d - 1) * (all * e / d), gathered.sent_bytes + reduced.sent_bytes);
    EXPECT_EQ((Ledger::Entry{2, 2 * all * e, 2 * (d - 1) * block * e}), gathered);
    EXPECT_EQ((Ledger::Entry{1, all * e, (d - 1) * block * e}), reduced);
    // DDP: one all-reduce, Φe in all, as much on the wire as a reduce-scatter and an all-gather (ZeRO-1).
    dp->all_reduce(*stream, comm::Reduction::sum(DType::fp32), gradients, gradients);
    EXPECT_EQ((Ledger::Entry{1, all * e, gathered.sent_bytes / 2 + reduced.sent_bytes}),
              ledger.of("dp", comm::Operation::all_reduce));
    // DP: broadcast Φe, reduce Φe to the root.
    dp->broadcast(*stream, parameters, 0);
    dp->reduce(*stream, comm::Reduction::sum(DType::fp32), gradients, gradients, 0);
    EXPECT_EQ(all * e, ledger.of("dp", comm::Operation::broadcast).payload_bytes);
    EXPECT_EQ((Ledger::Entry{1, all * e, me == 0 ? 0 : all * e}), ledger.of("dp", comm::Operation::reduce));
    stream->synchronize();
    EXPECT_EQ(5U, ledger.entries().size()) << to_string(ledger);
    // With uneven blocks, the bytes of all ranks together follow the formula.
    ledger.clear();
    std::vector<float> odd(1001, 1.0F);
    const auto odd_bytes = std::as_writable_bytes(std::span(odd));
    dp->all_reduce(*stream, comm::Reduction::sum(DType::fp32), odd_bytes, odd_bytes);
    std::vector<double> sent{static_cast<double>(ledger.of("dp", comm::Operation::all_reduce).sent_bytes)};
    const auto sent_bytes = std::as_writable_bytes(std::span(sent));
    dp->all_reduce(*stream, comm::Reduction::sum(DType::fp64), sent_bytes, sent_bytes);
    stream->synchronize();
    EXPECT_EQ(2.0 * static_cast<double>((d - 1) * 1001 * e), sent.front());
  });
}

// Canonical reduction: rank r gives contribution round · ranks + r. The sum of all 24 equals one rank's sum, bit for bit, for
// every number of ranks that divides them.
TEST_P(CommunicatorContract, FoldingRoundsInTheOrderOfRanksIsOneRanksSum) {
  run([](Rank& rank) {
    constexpr std::size_t kMicroBatches = 24;
    if (kMicroBatches % static_cast<std::size_t>(rank.comm->size()) != 0) return;
    const auto stream = rank.device.make_stream("comm");
    const auto ranks = static_cast<std::size_t>(rank.comm->size()), me = static_cast<std::size_t>(rank.comm->rank());
    for (const auto dtype : {DType::fp32, DType::fp64, DType::bf16}) {
      const auto accumulator = dtype == DType::bf16 ? DType::fp32 : dtype;
      const std::size_t block = 48 / ranks;
      std::vector<Buffer> contributions;
      for (std::size_t j = 0; j < kMicroBatches; ++j)
        contributions.push_back(test::random_elements(dtype, block * ranks, first_seed() + j));
      Buffer mine(block * size_of(accumulator), std::byte{0x55});
      for (std::size_t j = me; j < kMicroBatches; j += ranks)
        rank.comm->reduce_scatter(*stream,
                                  {.from = dtype, .to = accumulator, .onto = j >= ranks, .order = comm::SumOrder::ranks},
                                  contributions[j], mine);
      stream->synchronize();
      const auto want = test::fold_oracle({dtype, accumulator}, contributions, me * block, block);
      EXPECT_TRUE(want == mine) << name_of(dtype) << " with " << ranks << " ranks, seed " << first_seed();
    }
  });
}

TEST_P(CommunicatorContract, WrongArgumentsThrowAtOnce) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    auto& comm = *rank.comm;
    const auto ranks = static_cast<std::size_t>(comm.size());
    Buffer small(8), all(8 * ranks), more(8 * ranks + 4);
    const auto sum = comm::Reduction::sum(DType::fp32);
    EXPECT_THROW(comm.all_gather(*stream, small, more), Error);
    EXPECT_THROW(comm.reduce_scatter(*stream, sum, all, more), Error);
    EXPECT_THROW(comm.all_reduce(*stream, sum, bytes_of(all).first(3), bytes_of(all).first(3)), Error);
    EXPECT_THROW(comm.all_reduce(*stream, sum, bytes_of(more).first(8), bytes_of(more).subspan(4, 8)), Error) << "overlap";
    EXPECT_THROW(comm.all_reduce(*stream, comm::Reduction::sum(DType::i32), small, small), Error);
    EXPECT_THROW(comm.broadcast(*stream, small, comm.size()), Error);
    EXPECT_THROW(comm.send(*stream, small, -1, 0), Error);
    EXPECT_THROW(comm.send(*stream, small, 0, kMessageLanes), Error);
    comm.barrier(*stream);  // nothing was issued: the ranks still agree
    stream->synchronize();
  });
}

// ---- failures: every wait ends, and the error names the culprit ----------------------------------------------------------

class CommunicatorFailure : public CommunicatorContract {
 protected:
};

TEST_P(CommunicatorFailure, ARankThatDiesIsNamed) {
  for (const std::uint64_t k : {1U, 4U}) {
    run([k](Rank& rank) {
      const int last = rank.comm->size() - 1, me = rank.comm->rank();
      const auto comm = with_faults(std::move(rank.comm), {.seed = first_seed(), .dying_rank = last, .dies_at_call = k});
      const auto stream = rank.device.make_stream("comm");
      std::vector<float> data(1000, 1.0F);
      const auto bytes = std::as_writable_bytes(std::span(data));
      const auto error = error_of([&] {
        for (int i = 0; i < 8; ++i) {
          comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), bytes, bytes);
          stream->synchronize();
        }
      });
      EXPECT_THAT(error, HasSubstr("rank " + std::to_string(last) + (me == last ? " died at its call" : " has left")));
    });
  }
}

TEST_P(CommunicatorFailure, AReceiveFromARankThatDiedEnds) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    Buffer data(64);
    if (rank.comm->rank() == 0) {
      rank.comm.reset();
      return;
    }
    const auto error = error_of([&] {
      rank.comm->receive(*stream, data, 0, 5);
      stream->synchronize();
    });
    EXPECT_THAT(error, HasSubstr("rank 0 has left"));
  });
}

TEST_P(CommunicatorFailure, WorkDroppedByAFailedStreamFailsTheOthers) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    const bool culprit = rank.comm->rank() == 1;
    if (culprit) stream->submit([] { throw Error("out of luck"); });
    Buffer data(64);
    const auto error = error_of([&] {
      rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), data, data);
      stream->synchronize();
    });
    EXPECT_THAT(error, culprit ? HasSubstr("out of luck") : HasSubstr("rank 1 failed: call 1, all-reduce of 64 bytes"));
  });
}

TEST_P(CommunicatorFailure, DifferentCollectivesAreSeen) {
  run([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    const auto error = error_of([&] {
      Buffer data(rank.comm->rank() == 0 ? 64 : 128);
      rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), data, data);
      stream->synchronize();
    });
    EXPECT_THAT(error, HasSubstr("do not match"));
    EXPECT_THAT(error, HasSubstr("all-reduce of 64 bytes"));
    EXPECT_THAT(error, HasSubstr("all-reduce of 128 bytes"));
  });
}

TEST_P(CommunicatorFailure, AHangBecomesAReport) {
  test::on_ranks(GetParam(), {.time_limit = 300ms}, [](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    Buffer data(64);
    rank.comm->broadcast(*stream, data, 0);
    stream->synchronize();
    const auto begin = std::chrono::steady_clock::now();
    const auto error = error_of([&] {
      if (rank.comm->rank() == 1) {
        rank.comm->receive(*stream, data, 1, 3);  // no rank sends it
      } else {
        rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), data, data);
      }
      stream->synchronize();
    });
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms) << "nobody waited";
    EXPECT_THAT(error, testing::AllOf(HasSubstr("waited 0.3 s in its call 2"), HasSubstr("not arrived: rank 1")));
    if (GetParam().name == "mpi" && GetParam().ranks_per_machine > 0) return;  // positions are known only within one machine
    EXPECT_THAT(error, HasSubstr("rank 0: 1 calls ended, in call 2, all-reduce of 64 bytes (fp32 sum)"));
    EXPECT_THAT(error, HasSubstr("rank 1: 1 calls ended, in call 2, receive of 64 bytes from rank 1 on lane 3"));
  });
}

// A rank may spend longer at its disk than a call may take.
TEST_P(CommunicatorFailure, AnAgreementWaitsAsLongAsItTakes) {
  const auto outcome = test::on_ranks(GetParam(), {.time_limit = 100ms}, [](Rank& rank) {
    Agreement agreement(*rank.comm, rank.device);
    const int me = rank.comm->rank(), all = rank.comm->size();
    for (int late = 0; late < 2; ++late) {
      if (me == late) std::this_thread::sleep_for(300ms);
      EXPECT_EQ(agreement.max(me), all - 1);
      EXPECT_EQ(agreement.each(me).size(), static_cast<std::size_t>(all));
      EXPECT_EQ(agreement.of_first(me == 0 ? "1f1b" : "something longer"), "1f1b");
      EXPECT_EQ(agreement.of_first(me == 0 ? "" : "x"), "");
      if (me == late) std::this_thread::sleep_for(300ms);
      agreement.barrier();
    }
  });
  for (const auto& error : outcome) EXPECT_EQ(error, "");
}

TEST_P(CommunicatorFailure, AnAgreementDoesNotWaitForARankThatLeft) {
  test::on_ranks(GetParam(), {.time_limit = 60s}, [](Rank& rank) {
    if (rank.comm->rank() == 1) return rank.comm.reset();
    Agreement agreement(*rank.comm, rank.device);
    EXPECT_THAT(error_of([&] { agreement.barrier(); }), HasSubstr("rank 1 has left"));
  });
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorFailure);  // under mpirun -n 1
INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorContract, testing::ValuesIn(test::backends()), test::name_of_backend);
INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorFailure, testing::ValuesIn(test::backends_of_many()), test::name_of_backend);

}  // namespace
}  // namespace terrace
