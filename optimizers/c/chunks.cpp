#include <memory>
#include <vector>

#include <terrace/offload/manager/activations.h>
#include <terrace/optimizers/c/device.h>
#include <terrace/optimizers/c/guard.h>

struct terrace_chunks {
  explicit terrace_chunks(const terrace_chunks_options& options)
      : device(options), manager(terrace::c::offload_options(options, device.device())) {}
  terrace::c::HandleDevice device;
  terrace::ChunkManager manager;
  terrace::Activations activations{manager};
};

struct terrace_saved {
  terrace_chunks* chunks = nullptr;
  terrace::Activations::Saved handle;
};

struct terrace_lease {
  terrace_chunks* chunks = nullptr;
  terrace::Lease lease;
};

namespace terrace::c {
namespace {

Tier tier_of(terrace_tier tier) {
  if (tier == TERRACE_DEVICE) return Tier::device;
  if (tier == TERRACE_HOST) return Tier::host;
  throw std::logic_error("tier " + std::to_string(tier) + " is neither TERRACE_DEVICE nor TERRACE_HOST");
}

Access access_of(terrace_access access) {
  switch (access) {
    case TERRACE_READ: return Access::read;
    case TERRACE_OVERWRITE: return Access::overwrite;
    case TERRACE_UPDATE: return Access::update;
    default:
      throw std::logic_error("access " + std::to_string(access) +
                             " is none of TERRACE_READ, TERRACE_OVERWRITE and TERRACE_UPDATE");
  }
}

// Calls `body` with the manager.
template <class Body>
terrace_status with_manager(terrace_chunks* chunks, Body&& body) noexcept {
  return guarded([&] { body(there(chunks, "chunks").manager); });
}

}  // namespace
}  // namespace terrace::c

using namespace terrace::c;
using terrace::ChunkId;

extern "C" {

terrace_status terrace_chunks_create(const terrace_chunks_options* options, terrace_chunks** chunks) {
  return guarded([&] {
    auto& result = there(chunks, "the place for the chunks");
    result = std::make_unique<terrace_chunks>(known(options, "terrace_chunks_options")).release();
  });
}

void terrace_chunks_destroy(terrace_chunks* chunks) { delete chunks; }

terrace_status terrace_chunks_add(terrace_chunks* chunks, const char* name, uint64_t bytes, terrace_chunk* chunk) {
  return with_manager(chunks, [&](auto& manager) {
    auto& result = there(chunk, "the place for the chunk");
    result = index(name ? manager.add(std::string(name), bytes) : manager.add(bytes));
  });
}

terrace_status terrace_chunks_has_content(terrace_chunks* chunks, terrace_chunk chunk, int32_t* has) {
  return with_manager(chunks, [&](auto& manager) { there(has, "has") = manager.has_content(ChunkId{chunk}) ? 1 : 0; });
}

terrace_status terrace_chunks_remove(terrace_chunks* chunks, terrace_chunk chunk) {
  return with_manager(chunks, [&](auto& manager) { manager.remove(ChunkId{chunk}); });
}

terrace_status terrace_chunks_resize(terrace_chunks* chunks, terrace_chunk chunk, uint64_t bytes) {
  return with_manager(chunks, [&](auto& manager) { manager.resize(ChunkId{chunk}, bytes); });
}

terrace_status terrace_chunks_drop(terrace_chunks* chunks, terrace_chunk chunk) {
  return with_manager(chunks, [&](auto& manager) { manager.drop(ChunkId{chunk}); });
}

terrace_status terrace_chunks_prefetch(terrace_chunks* chunks, terrace_chunk chunk, terrace_tier tier) {
  return with_manager(chunks, [&](auto& manager) { manager.prefetch(ChunkId{chunk}, tier_of(tier)); });
}

terrace_status terrace_chunks_acquire(terrace_chunks* chunks, const terrace_use* uses, size_t count, terrace_tier tier,
                                      void* stream, terrace_lease** lease) {
  return with_manager(chunks, [&](auto& manager) {
    auto& result = there(lease, "the place for the lease");
    std::vector<terrace::Use> wanted;
    for (std::size_t i = 0; i < count; ++i) {
      const auto& use = (&there(uses, "uses"))[i];
      wanted.push_back({ChunkId{use.chunk}, access_of(use.access)});
    }
    auto made = std::make_unique<terrace_lease>();
    made->chunks = chunks;
    terrace::AcquireOptions options;
    options.stream = chunks->device.stream(stream);
    made->lease = manager.acquire(wanted, tier_of(tier), options);
    result = made.release();
  });
}

terrace_status terrace_lease_bytes(const terrace_lease* lease, size_t i, void** data, uint64_t* bytes) {
  return guarded([&] {
    const auto& held = there(lease, "lease").lease;
    if (i >= held.size())
      throw std::logic_error("a lease of " + std::to_string(held.size()) + " chunks has no number " + std::to_string(i));
    if (data) *data = held.bytes(i).data();
    if (bytes) *bytes = held.bytes(i).size();
  });
}

void terrace_lease_release(terrace_lease* lease) { delete lease; }

terrace_status terrace_lease_release_after(terrace_lease* lease, void* stream) {
  return guarded([&] {
    auto& held = there(lease, "lease");
    held.lease.release_after(there(held.chunks->device.stream(stream), "stream"));
    delete lease;
  });
}

terrace_status terrace_chunks_save(terrace_chunks* chunks, const void* data, uint64_t bytes, void* stream,
                                   terrace_saved** saved) {
  return guarded([&] {
    auto& from = there(chunks, "chunks");
    auto& result = there(saved, "the place for the saved tensor");
    if (bytes > 0 && !data) throw std::logic_error("data is null");
    auto made = std::make_unique<terrace_saved>();
    made->chunks = chunks;
    made->handle = from.activations.offload({static_cast<const std::byte*>(data), bytes}, from.device.stream(stream));
    result = made.release();
  });
}

terrace_status terrace_saved_fetch(const terrace_saved* saved, void* to, uint64_t bytes, void* stream) {
  return guarded([&] {
    const auto& from = there(saved, "saved");
    if (bytes > 0 && !to) throw std::logic_error("to is null");
    from.chunks->activations.fetch(from.handle, {static_cast<std::byte*>(to), bytes}, from.chunks->device.stream(stream));
  });
}

void terrace_saved_drop(terrace_saved* saved) { delete saved; }

terrace_status terrace_chunks_begin_pass(terrace_chunks* chunks, const char* loop) {
  return with_manager(chunks, [&](auto& manager) { manager.begin_pass(loop ? loop : ""); });
}

terrace_status terrace_chunks_end_pass(terrace_chunks* chunks) {
  return with_manager(chunks, [&](auto& manager) { manager.end_pass(); });
}

terrace_status terrace_chunks_flush(terrace_chunks* chunks) {
  return with_manager(chunks, [&](auto& manager) { manager.flush(); });
}

terrace_status terrace_chunks_commit(terrace_chunks* chunks, uint64_t step, const char* payload) {
  return with_manager(chunks, [&](auto& manager) { manager.commit(step, payload ? payload : ""); });
}

terrace_status terrace_chunks_last_commit(terrace_chunks* chunks, int32_t* exists, uint64_t* step) {
  return with_manager(chunks, [&](auto& manager) {
    const auto commit = manager.last_commit();
    there(exists, "exists") = commit ? 1 : 0;
    if (step) *step = commit ? commit->step : 0;
  });
}

terrace_status terrace_chunks_stats(terrace_chunks* chunks, terrace_stats* stats) {
  return with_manager(chunks, [&](auto& manager) {
    const auto moved = manager.traffic();
    const auto peak = manager.peak_bytes();
    using terrace::Tier;
    give(terrace_stats{0, moved.upload, moved.download, moved.read, moved.write, peak[Tier::device], peak[Tier::host],
                       peak[Tier::disk]},
         stats, "terrace_stats");
  });
}
}
