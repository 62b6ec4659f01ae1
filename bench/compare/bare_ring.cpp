// The minimal program that moves a file's bytes through io_uring: huge pages, registered buffers, no checks of data, no
// separate queue, one loop. nvme_bare.py compares `terrace bench nvme` with it.
//   bare_ring FILE read|write FILE-BYTES BLOCK-BYTES DEPTH
// prints GB/s and CPU seconds per GiB. FILE must exist and have that size.
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

[[noreturn]] void fail(const char* what, int error_number) {
  std::fprintf(stderr, "bare_ring: %s: %s\n", what, std::strerror(error_number));
  std::exit(1);
}
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("bare_ring FILE read|write FILE-BYTES BLOCK-BYTES DEPTH\n", stderr);
    return 2;
  }
  const bool write = std::string_view(argv[2]) == "write";
  const std::size_t file_bytes = std::stoull(argv[3]), block_bytes = std::stoull(argv[4]), depth = std::stoull(argv[5]);
  const int file = ::open(argv[1], O_RDWR | O_DIRECT | O_CLOEXEC);
  if (file < 0) fail(argv[1], errno);

  constexpr std::size_t kHuge = 2UL << 20;
  const std::size_t bytes = depth * block_bytes;
  auto* const mapped =
      static_cast<char*>(::mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (mapped == MAP_FAILED) fail("mmap", errno);
  auto* const memory = mapped + (kHuge - reinterpret_cast<std::uintptr_t>(mapped) % kHuge) % kHuge;
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(i * 2654435761U >> 13U);

  io_uring ring;
  const unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN;
  if (const int e = io_uring_queue_init(static_cast<unsigned>(depth), &ring, flags)) fail("io_uring_setup", -e);
  if (const int e = io_uring_register_files(&ring, &file, 1)) fail("register files", -e);
  const iovec all{memory, bytes};
  if (const int e = io_uring_register_buffers(&ring, &all, 1)) fail("register buffers", -e);

  const std::size_t blocks = file_bytes / block_bytes;
  std::size_t begun = 0, ended = 0;
  const auto submit = [&](std::size_t slot) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring);
    const auto size = static_cast<unsigned>(block_bytes);
    if (write) {
      io_uring_prep_write_fixed(sqe, 0, memory + slot * block_bytes, size, begun * block_bytes, 0);
    } else {
      io_uring_prep_read_fixed(sqe, 0, memory + slot * block_bytes, size, begun * block_bytes, 0);
    }
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    sqe->user_data = slot;
    ++begun;
  };
  const double cpu_before = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  while (begun < blocks && begun < depth) submit(begun);
  while (ended < blocks) {
    const int entered = io_uring_submit_and_wait(&ring, 1);
    if (entered < 0 && entered != -EINTR) fail("io_uring_enter", -entered);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      if (cqe->res != static_cast<int>(block_bytes)) fail("a request", cqe->res < 0 ? -cqe->res : EIO);
      const auto slot = static_cast<std::size_t>(cqe->user_data);
      io_uring_cqe_seen(&ring, cqe);
      ++ended;
      if (begun < blocks) submit(slot);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto moved = static_cast<double>(blocks * block_bytes);
  std::printf("%.6f %.6f\n", 1e-9 * moved / seconds, (cpu_seconds() - cpu_before) / (moved / static_cast<double>(1UL << 30)));
  io_uring_queue_exit(&ring);
  return 0;
}
