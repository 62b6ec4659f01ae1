// A mount that is only visible to this process and its children, and disappears with it.
//
// Owner: the test. Threads: one. Errors: every function returns false if mounting is not permitted, and why() gives the reason.
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

namespace terrace::test {

class PrivateMount {
 public:
  explicit PrivateMount(std::filesystem::path at) : at_(std::move(at)) {}
  PrivateMount(const PrivateMount&) = delete;
  PrivateMount& operator=(const PrivateMount&) = delete;
  ~PrivateMount() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }

  // Memory of a fixed size, as a small disk.
  bool memory(std::size_t bytes) { return own() && mount("tmpfs", "tmpfs", 0, "size=" + std::to_string(bytes)); }
  // A file with its own file system, as a small disk with real direct I/O and fallocate. Returns false in a container without
  // loop devices or mkfs.ext4.
  bool ext4(const std::filesystem::path& image, std::size_t bytes) {
    if (!own()) return false;
    const auto text = "'" + image.string() + "'";
    return shell("truncate -s " + std::to_string(bytes) + " " + text + " && mkfs.ext4 -q -F -m 0 " + text) &&
           mount_image(image);
  }
  bool btrfs(const std::filesystem::path& image) {
    if (!own()) return false;
    const auto text = "'" + image.string() + "'";
    return shell("truncate -s 256M " + text + " && mkfs.btrfs -q -f " + text) && mount_image(image);
  }
  bool mount_image(const std::filesystem::path& image) {
    return mounted_ = shell("mount -o loop '" + image.string() + "' '" + at_.string() + "'");
  }
  // Hides the mount at once. Programs that still use it continue, because a failed drive may be busy for a long time.
  bool detach() {
    mounted_ = !note(::umount2(at_.c_str(), MNT_DETACH));
    return !mounted_;
  }
  bool read_only() {
    return own() && mount(at_.c_str(), "", MS_BIND, "") &&
           ::mount("", at_.c_str(), "", MS_REMOUNT | MS_BIND | MS_RDONLY, "") == 0;
  }
  bool overlay(const std::filesystem::path& lower, const std::filesystem::path& upper, const std::filesystem::path& work) {
    return own() && mount("overlay", "overlay", 0,
                          "lowerdir=" + lower.string() + ",upperdir=" + upper.string() + ",workdir=" + work.string());
  }
  [[nodiscard]] std::string why() const { return std::strerror(error_); }

 private:
  // A separate mount namespace, from which no mount propagates back.
  bool own() { return note(::unshare(CLONE_NEWNS)) && note(::mount("none", "/", "", MS_REC | MS_PRIVATE, "")); }
  bool mount(const char* what, const char* type, unsigned long flags, const std::string& options) {
    return mounted_ = note(::mount(what, at_.c_str(), type, flags, options.c_str()));
  }
  bool shell(const std::string& command) {
    error_ = ENODEV;
    return std::system(("(" + command + ") >/dev/null 2>&1").c_str()) == 0;
  }
  bool note(int result) {
    if (result != 0) error_ = errno;
    return result == 0;
  }

  std::filesystem::path at_;
  bool mounted_ = false;
  int error_ = 0;
};

}  // namespace terrace::test
