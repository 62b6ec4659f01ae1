// A disk benchmark's settings in the form that other programs use, for copy and paste.
//
// Threads: any. Errors: none.
#pragma once

#include <filesystem>
#include <string>

#include <terrace/bench/disk/disk_job.h>

namespace terrace::bench {

std::string name_of(DiskOp op);
// The same job for fio, in the same directory, with fio's fastest settings: io_uring, registered buffers and files.
// `seconds`: the job lasts so long, over and over the file; 0: it moves the file once.
std::string fio_line(DiskOp op, const DiskShape& shape, std::uint64_t bytes, const std::filesystem::path& directory,
                     double seconds = 0);
// The same job for `terrace bench nvme`, and as the "aio" section of a DeepSpeed configuration.
std::string terrace_line(DiskOp op, const DiskShape& shape, std::uint64_t bytes, const std::filesystem::path& directory);
std::string deepspeed_section(const DiskShape& shape);

}  // namespace terrace::bench
