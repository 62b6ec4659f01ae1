// The fuzzers read and write with threads: what io_uring needs is not built for them.
#include <terrace/offload/io/io_engine.h>

namespace terrace {

std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options) { return make_thread_engine(options); }

}  // namespace terrace
