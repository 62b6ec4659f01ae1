// Continues the store of kept_chunks_test.cpp, changes all chunks, commits, says so, and goes on, until it is killed.
//
//   kept_chunks_program STORE STEPS SEED
#include <cstdio>
#include <exception>
#include <string>

#include <terrace/tests/offload/kept_words.h>

int main(int, char** argv) try {
  using namespace terrace;
  ChunkManager manager(test::kept_options(argv[1]));
  const auto steps = std::stoull(argv[2]), seed = std::stoull(argv[3]);
  std::vector<ChunkId> chunks;
  for (std::uint64_t i = 0; i < test::kKeptChunks; ++i) chunks.push_back(manager.add(test::kept_name(i), test::kept_bytes(i)));
  const auto commit = manager.last_commit();
  for (auto step = commit ? commit->step + 1 : 1; step <= steps; ++step) {
    test::write_step(manager, chunks, step, seed + step);
    manager.commit(step, fmt::format("at {}", step));
    std::printf("%llu\n", static_cast<unsigned long long>(step));
    std::fflush(stdout);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 3;
}
