// An object of cuDNN's graph API: created, given its attributes, then finalized; after that it is read-only.
//
// Owner:   the caller; what an object refers to must outlive it, and so must the library.
// Threads: one at a time.
// Errors:  Error that names the object, the attribute and the library's reason.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/cuda/cudnn/library.h>

namespace terrace::cuda::cudnn {

class Descriptor {
 public:
  Descriptor(const Library& library, Kind kind);
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept
      : library_(other.library_), kind_(other.kind_), object_(std::exchange(other.object_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(library_, other.library_), std::swap(kind_, other.kind_), std::swap(object_, other.object_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  Descriptor& set(Name name, Type type, std::int64_t count, const void* values);
  Descriptor& set(Name name, std::span<const std::int64_t> values) {
    return set(name, Type::int64, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(Name name, std::int64_t value) { return set(name, Type::int64, 1, &value); }
  Descriptor& set(Name name, bool value) { return set(name, Type::boolean, 1, &value); }
  Descriptor& set(Name name, DataType value) { return set_code(name, Type::data_type, value); }
  Descriptor& set(Name name, Pointwise value) { return set_code(name, Type::pointwise_mode, value); }
  Descriptor& set(Name name, Reduction value) { return set_code(name, Type::reduction, value); }
  Descriptor& set(Name name, Heuristic value) { return set_code(name, Type::heuristic_mode, value); }
  Descriptor& set(Name name, const Descriptor& value) { return set(name, Type::object, 1, &value.object_); }
  Descriptor& set(Name name, const std::vector<const Descriptor*>& values);

  // Returns 0 or the library's status, because a plan or an engine may be refused for good reasons.
  [[nodiscard]] int try_finalize() const { return library_->finalize(object_); }
  Descriptor& finalize();

  [[nodiscard]] std::int64_t get_int(Name name) const;
  [[nodiscard]] std::int64_t count(Name name, Type type) const;
  // Fills as many elements of `into` as the attribute has, and returns that number.
  std::int64_t get(Name name, Type type, std::int64_t room, void* into) const;
  std::int64_t get(Name name, const std::vector<Descriptor>& into) const;

  [[nodiscard]] void* object() const { return object_; }
  [[nodiscard]] const Library& library() const { return *library_; }

 private:
  template <class Code>
  Descriptor& set_code(Name name, Type type, Code value) {
    const int code = static_cast<int>(value);
    return set(name, type, 1, &code);
  }
  [[nodiscard]] std::string about(const char* call, Name name) const;
  void reset() noexcept {
    if (object_) library_->destroy(object_);
  }

  const Library* library_;
  Kind kind_;
  void* object_ = nullptr;
};

}  // namespace terrace::cuda::cudnn
