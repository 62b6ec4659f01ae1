#include <terrace/core/cuda/cudnn/descriptor.h>

#include <fmt/format.h>

namespace terrace::cuda::cudnn {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::pointwise: return "pointwise description";
    case Kind::engine: return "engine";
    case Kind::engine_config: return "engine configuration";
    case Kind::heuristics: return "heuristics";
    case Kind::plan: return "execution plan";
    case Kind::knob_choice: return "knob choice";
    case Kind::pointwise_operation: return "pointwise operation";
    case Kind::graph: return "operation graph";
    case Kind::variant_pack: return "variant pack";
    case Kind::tensor: return "tensor";
    case Kind::matmul: return "matmul description";
    case Kind::matmul_operation: return "matmul operation";
    case Kind::reduction: return "reduction description";
    case Kind::reduction_operation: return "reduction operation";
    case Kind::reshape_operation: return "reshape operation";
    case Kind::device: return "device";
  }
  return "object";
}

}  // namespace

Descriptor::Descriptor(const Library& library, Kind kind) : library_(&library), kind_(kind) {
  library.check(library.create(static_cast<int>(kind), &object_),
                fmt::format("cudnnBackendCreateDescriptor of a {}", name_of(kind)));
}

std::string Descriptor::about(const char* call, Name name) const {
  return fmt::format("{} {} of a {}", call, static_cast<int>(name), name_of(kind_));
}

Descriptor& Descriptor::set(Name name, Type type, std::int64_t count, const void* values) {
  library_->check(library_->set(object_, static_cast<int>(name), static_cast<int>(type), count, values),
                  about("cudnnBackendSetAttribute", name));
  return *this;
}

Descriptor& Descriptor::set(Name name, const std::vector<const Descriptor*>& values) {
  std::vector<void*> objects;
  objects.reserve(values.size());
  for (const auto* value : values) objects.push_back(value->object_);
  return set(name, Type::object, static_cast<std::int64_t>(objects.size()), objects.data());
}

Descriptor& Descriptor::finalize() {
  library_->check(try_finalize(), fmt::format("cudnnBackendFinalize of a {}", name_of(kind_)));
  return *this;
}

std::int64_t Descriptor::get(Name name, Type type, std::int64_t room, void* into) const {
  std::int64_t found = 0;
  library_->check(library_->get(object_, static_cast<int>(name), static_cast<int>(type), room, &found, into),
                  about("cudnnBackendGetAttribute", name));
  return found;
}

std::int64_t Descriptor::count(Name name, Type type) const { return get(name, type, 0, nullptr); }

std::int64_t Descriptor::get_int(Name name) const {
  std::int64_t value = 0;
  get(name, Type::int64, 1, &value);
  return value;
}

std::int64_t Descriptor::get(Name name, const std::vector<Descriptor>& into) const {
  std::vector<void*> objects;
  objects.reserve(into.size());
  for (const auto& descriptor : into) objects.push_back(descriptor.object_);
  return get(name, Type::object, static_cast<std::int64_t>(objects.size()), objects.data());
}

}  // namespace terrace::cuda::cudnn
