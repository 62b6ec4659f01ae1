// Compares terrace's collectives with plain MPI calls of the same size, alternately in one run:
//   mpirun -n 2 collectives_bench [MIB] [ROUNDS]
// Every figure is the payload bytes of the whole buffer divided by the slowest rank's time; medians over the rounds. Beside it
// is the CPU time, in milliseconds, that a call takes on the first rank, waiting included; a busy machine changes it less. The
// results are compared too: a fast wrong sum is worth nothing.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/comm/mpi/mpi.h>

namespace {

using namespace terrace;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Returns the slowest rank's seconds; `cpu` gets the CPU seconds of this rank, over all its threads.
double timed(const std::function<void()>& work, double& cpu) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = std::chrono::steady_clock::now();
  cpu = -cpu_seconds();
  work();
  cpu += cpu_seconds();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), slowest = 0;
  MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Operation {
  std::string name;
  std::function<void()> ours, mpi;
  std::function<bool()> equal;
};

int run(std::size_t mib, int rounds) {
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  const auto world = make_mpi_communicator();
  const auto stream = device->make_stream("comm");
  const int rank = world->rank(), ranks = world->size();
  const std::size_t block = mib * 1024 * 1024 / sizeof(float) / static_cast<std::size_t>(ranks);
  const std::size_t count = block * static_cast<std::size_t>(ranks);

  // Small whole numbers: their sum is exact in every order, so the two results can be compared.
  // Whole pages, like the engine's buffers.
  const auto memory = device->host_memory();
  const Slab slabs[] = {memory->allocate(count * sizeof(float)), memory->allocate(count * sizeof(float)),
                        memory->allocate(count * sizeof(float))};
  const auto floats = [&](const Slab& slab) { return std::span(reinterpret_cast<float*>(slab.data()), count); };
  const auto from = floats(slabs[0]), ours = floats(slabs[1]), mpi = floats(slabs[2]);
  for (std::size_t i = 0; i < count; ++i) from[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank)) % 1000);
  const auto bytes = [](std::span<float> v, std::size_t n) { return std::as_writable_bytes(v.first(n)); };
  const auto copied = [&](std::span<float> to) { std::ranges::copy(from, to.begin()); };
  const auto same = [&](std::size_t n) { return std::memcmp(ours.data(), mpi.data(), n * sizeof(float)) == 0; };
  const int n = static_cast<int>(count), b = static_cast<int>(block);
  const auto sum = comm::Reduction::sum(DType::fp32);
  const std::vector<Operation> operations = {
      {"reduce-scatter",
       [&] { world->reduce_scatter(*stream, sum, bytes(from, count), bytes(ours, block)), stream->synchronize(); },
       [&] { MPI_Reduce_scatter_block(from.data(), mpi.data(), b, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
       [&] { return same(block); }},
      {"all-reduce", [&] { world->all_reduce(*stream, sum, bytes(from, count), bytes(ours, count)), stream->synchronize(); },
       [&] { MPI_Allreduce(from.data(), mpi.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }, [&] { return same(count); }},
      {"  in place", [&] { world->all_reduce(*stream, sum, bytes(ours, count), bytes(ours, count)), stream->synchronize(); },
       [&] { MPI_Allreduce(MPI_IN_PLACE, mpi.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }, [&] { return same(count); }},
      {"all-gather", [&] { world->all_gather(*stream, bytes(from, block), bytes(ours, count)), stream->synchronize(); },
       [&] { MPI_Allgather(from.data(), b, MPI_FLOAT, mpi.data(), b, MPI_FLOAT, MPI_COMM_WORLD); },
       [&] { return same(count); }},
  };

  bool correct = true;
  const double gigabytes = static_cast<double>(count * sizeof(float)) / 1e9;
  if (rank == 0)
    std::printf("%d ranks, %zu MiB, %d rounds, medians\n%-16s %8s %8s %8s %16s %8s\n", ranks, mib, rounds, "GB/s", "terrace",
                "MPI", "ratio", "CPU ms: terrace", "MPI");
  for (const auto& operation : operations) {
    copied(ours);  // the first touch is not timed
    copied(mpi);
    operation.ours();
    operation.mpi();
    correct = correct && operation.equal();
    std::vector<double> our_times, mpi_times, our_cpu(static_cast<std::size_t>(rounds)), mpi_cpu(our_cpu);
    for (std::size_t round = 0; round < our_cpu.size(); ++round) {
      our_times.push_back(timed(operation.ours, our_cpu[round]));
      mpi_times.push_back(timed(operation.mpi, mpi_cpu[round]));
    }
    const double a = gigabytes / median(our_times), m = gigabytes / median(mpi_times);
    if (rank == 0)
      std::printf("%-16s %8.2f %8.2f %8.2f %16.1f %8.1f\n", operation.name.c_str(), a, m, a / m, 1e3 * median(our_cpu),
                  1e3 * median(mpi_cpu));
  }
  if (!correct) std::fprintf(stderr, "rank %d: the results differ\n", rank);
  return correct ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int mib = argc > 1 ? std::atoi(argv[1]) : 256, rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (mib < 1 || mib > 4096 || rounds < 1) {
    std::fprintf(stderr, "usage: mpirun -n RANKS collectives_bench [MIB, up to 4096] [ROUNDS]\n");
    return 2;
  }
  try {
    return run(static_cast<std::size_t>(mib), rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
