// A disk benchmark's settings in the words of other programs, to paste.
//
// Threads: any. Errors: none.
#pragma once

#include <filesystem>
#include <string>

#include <terrace/bench/disk_job.h>

namespace terrace::bench {

std::string name_of(DiskOp op);
// The same job for fio, in the same directory, with its best ways: io_uring, registered buffers and files.
std::string fio_line(DiskOp op, const DiskShape& shape, std::uint64_t bytes, const std::filesystem::path& directory);
// The same for `terrace bench nvme`, and as the "aio" section of a DeepSpeed configuration.
std::string terrace_line(DiskOp op, const DiskShape& shape, std::uint64_t bytes, const std::filesystem::path& directory);
std::string deepspeed_section(const DiskShape& shape);

}  // namespace terrace::bench
