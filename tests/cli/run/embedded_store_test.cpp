// `terrace ckpt verify` and `inspect` read the store of a program that embeds terrace, alone and striped over two paths.
#include <cstring>
#include <fstream>

#include <terrace/offload/manager/chunk_manager.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class EmbeddedStore : public Cli {
 protected:
  static void make(OffloadOptions options) {
    options.host_bytes = kMiB;
    options.nvme_bytes = 4 * kMiB;
    options.threads = 1;
    ChunkManager manager(options);
    for (const auto* const name : {"first", "second"}) {
      const auto lease = manager.acquire(manager.add(name, 100'000), Tier::host, Access::overwrite);
      std::memset(lease.bytes().data(), name[0], lease.bytes().size());
    }
    manager.commit(7, "data at 12");
  }
};

TEST_F(EmbeddedStore, IsVerifiedAndInspected) {
  OffloadOptions options;
  options.store = at("mine");
  make(options);
  for (const auto* const folder : {"mine", "mine/"}) {
    const auto verified = terrace({"ckpt", "verify", folder});
    EXPECT_EQ(0, verified.exit) << verified.described;
    EXPECT_THAT(verified.out, HasSubstr("verified 2 chunks"));
  }
  const auto inspected = terrace({"ckpt", "inspect", "mine", "--json"});
  ASSERT_EQ(0, inspected.exit) << inspected.described;
  const auto facts = nlohmann::json::parse(inspected.out);
  EXPECT_EQ(7, facts.at("step"));
  EXPECT_EQ(100'000, facts.at("tensors").at("second"));
  {
    std::fstream data(at("mine/data"), std::ios::in | std::ios::out | std::ios::binary);
    data.seekp(70'000);
    data.put('x');
  }
  expect_refusal(terrace({"ckpt", "verify", "mine"}), 5, {"chunk 0 (first) is not what was written", "1 of 2 chunks"});
  expect_refusal(terrace({"ckpt", "copy", "mine", "other"}), 2, {"has no run"});
  expect_refusal(terrace({"ckpt", "verify", "."}), 2, {"has no run"});
}

TEST_F(EmbeddedStore, StripedOverPathsIsFoundByThePaths) {
  OffloadOptions options;
  options.store = "mine";
  options.nvme_paths = {at("a"), at("b")};
  make(options);
  const auto verified = terrace({"ckpt", "verify", "a/mine", "--nvme-path", "a", "--nvme-path", "b"});
  EXPECT_EQ(0, verified.exit) << verified.described;
  expect_refusal(terrace({"ckpt", "verify", "a/mine"}), 2, {"give the same paths"});
}

}  // namespace
}  // namespace terrace::test
