// The fuzzers use the engine with threads, because io_uring's dependencies are not built for them.
#include <terrace/offload/io/io_engine.h>

namespace terrace {

std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options) { return make_thread_engine(options); }

}  // namespace terrace
