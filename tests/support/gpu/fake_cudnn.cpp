// A libcudnn.so.9 for machines without a GPU: the graph API of the manual. A graph is not matched against patterns but
// computed, operation by operation, in fp32, so the results are what the graph says. A broken rule ends the process with a
// one-line message: objects that are not finalized or were destroyed, attributes of another type, tensors that no operation
// writes, memory without the promised alignment, workspace that overlaps a tensor.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include <fmt/format.h>

#include <terrace/core/cuda/cudnn/abi.h>
#include <terrace/core/math/dtype.h>
#include <terrace/tests/support/gpu/fake_cudnn.h>

namespace {

using namespace terrace::cuda::cudnn;  // the constants of the ABI
using terrace::test::FakeCudnn;
using Index = std::array<std::int64_t, 4>;
using Values = std::vector<float>;

FakeCudnn fake;
struct Object;
std::set<const Object*> alive;
std::string last_error;

[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "misuse of cuDNN: %s\n", what.c_str());
  std::abort();
}

struct Attribute {
  Type type;
  std::int64_t count;
  std::vector<std::byte> bytes;
};

struct Object {
  Kind kind;
  bool finalized = false;
  std::map<Name, Attribute> attributes = {};

  template <class T>
  std::vector<T> all(Name name) const {
    const auto at = attributes.find(name);
    if (at == attributes.end()) return {};
    std::vector<T> values(at->second.bytes.size() / sizeof(T));
    std::memcpy(values.data(), at->second.bytes.data(), at->second.bytes.size());
    return values;
  }
  template <class T>
  T one(Name name) const {
    const auto values = all<T>(name);
    if (values.size() != 1)
      misuse(fmt::format("attribute {} of an object of kind {} is not given", static_cast<int>(name), static_cast<int>(kind)));
    return values.front();
  }
  const Object& object(Name name) const { return *one<const Object*>(name); }
  template <class T>
  void put(Name name, Type type, const std::vector<T>& values) {
    Attribute attribute{type, static_cast<std::int64_t>(values.size()), std::vector<std::byte>(values.size() * sizeof(T))};
    std::memcpy(attribute.bytes.data(), values.data(), attribute.bytes.size());
    attributes[name] = std::move(attribute);
  }
};

std::size_t size_of(Type type) {
  switch (type) {
    case Type::boolean:
    case Type::character: return 1;
    case Type::handle:
    case Type::int64:
    case Type::pointer:
    case Type::object: return 8;
    default: return 4;
  }
}

// Counts the call; it fails if the test requested that.
int step() {
  ++fake.calls;
  if (fake.fail_at == 0 || --fake.fail_at != 0) return kSuccess;
  last_error = "made up";
  return 4000;  // CUDNN_STATUS_INTERNAL_ERROR
}
int unsupported(const char* why) {
  last_error = why;
  return 3000;
}

Object& known(const void* object) {
  auto* const o = static_cast<Object*>(const_cast<void*>(object));
  if (!alive.contains(o)) misuse("an object that is not there");
  return *o;
}

// ---- tensors ----

Index index_of(const Object& tensor, Name name) {
  const auto values = tensor.all<std::int64_t>(name);
  if (values.size() != 4) misuse("a tensor without four dimensions");
  return {values[0], values[1], values[2], values[3]};
}
Index dims_of(const Object& tensor) { return index_of(tensor, Name::tensor_dimensions); }
Index strides_of(const Object& tensor) { return index_of(tensor, Name::tensor_strides); }
DataType type_of(const Object& tensor) { return static_cast<DataType>(tensor.one<int>(Name::tensor_type)); }
bool is_virtual(const Object& tensor) { return tensor.one<char>(Name::tensor_is_virtual) != 0; }

template <class F>
void for_each(const Index& dims, F&& f) {
  Index i{};
  for (i[0] = 0; i[0] < dims[0]; ++i[0])
    for (i[1] = 0; i[1] < dims[1]; ++i[1])
      for (i[2] = 0; i[2] < dims[2]; ++i[2])
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) f(i);
}
std::int64_t offset(const Index& i, const Index& strides) {
  return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3];
}
std::size_t dense(const Index& i, const Index& d) {
  return static_cast<std::size_t>(((i[0] * d[1] + i[1]) * d[2] + i[2]) * d[3] + i[3]);
}
std::size_t count_of(const Index& d) { return static_cast<std::size_t>(d[0] * d[1] * d[2] * d[3]); }
// The index at which a smaller tensor is read for a larger one: heads of a group share an element, and a dimension of 1 is
// broadcast.
Index shared(const Index& i, const Index& of, const Index& narrow) {
  Index at{};
  for (std::size_t d = 0; d < 4; ++d) {
    if (of[d] % narrow[d] != 0) misuse("tensors whose dimensions do not divide");
    at[d] = i[d] / (of[d] / narrow[d]);
  }
  return at;
}

float rounded(float x, DataType type) { return type == DataType::bf16 ? static_cast<float>(terrace::bf16(x)) : x; }

class Run {
 public:
  Run(const Object& graph, const Object& pack, std::size_t workspace_bytes) : graph_(graph) {
    const auto ids = pack.all<std::int64_t>(Name::pack_ids);
    const auto pointers = pack.all<void*>(Name::pack_pointers);
    if (ids.size() != pointers.size()) misuse("a variant pack of ids without pointers");
    for (std::size_t i = 0; i < ids.size(); ++i) memory_[ids[i]] = static_cast<std::byte*>(pointers[i]);
    workspace_ = static_cast<std::byte*>(pack.one<void*>(Name::pack_workspace));
    workspace_bytes_ = workspace_bytes;
    if (workspace_bytes > 0) std::memset(workspace_, 0xff, workspace_bytes);
  }

  void operator()() {
    for (const auto* operation : graph_.all<const Object*>(Name::graph_operations)) {
      switch (operation->kind) {
        case Kind::matmul_operation: matmul(*operation); break;
        case Kind::pointwise_operation: pointwise(*operation); break;
        case Kind::reduction_operation: reduction(*operation); break;
        case Kind::reshape_operation: reshape(*operation); break;
        default: misuse("an operation that the made-up cuDNN does not know");
      }
    }
  }

 private:
  std::byte* place(const Object& tensor) {
    const auto at = memory_.find(tensor.one<std::int64_t>(Name::tensor_id));
    if (at == memory_.end() || !at->second) misuse("a tensor in memory that the variant pack does not have");
    if (tensor.one<char>(Name::tensor_is_value) != 0) return at->second;
    if (reinterpret_cast<std::uintptr_t>(at->second) %
        static_cast<std::uintptr_t>(tensor.one<std::int64_t>(Name::tensor_alignment)))
      misuse("a tensor that is not aligned as it says");
    if (at->second >= workspace_ && at->second < workspace_ + workspace_bytes_) misuse("a tensor in the workspace");
    return at->second;
  }
  Values load(const Object& tensor) {
    if (is_virtual(tensor)) {
      const auto at = between_.find(&tensor);
      if (at == between_.end()) misuse("a virtual tensor that nothing has made");
      return at->second;
    }
    const auto dims = dims_of(tensor), strides = strides_of(tensor);
    const auto* const from = place(tensor);
    Values values(count_of(dims));
    for_each(dims, [&](const Index& i) {
      const auto at = offset(i, strides);
      values[dense(i, dims)] = type_of(tensor) == DataType::bf16
                                   ? static_cast<float>(reinterpret_cast<const terrace::bf16*>(from)[at])
                                   : reinterpret_cast<const float*>(from)[at];
    });
    return values;
  }
  void store(const Object& tensor, Values values) {
    for (auto& x : values) x = rounded(x, type_of(tensor));
    if (!is_virtual(tensor)) {
      const auto dims = dims_of(tensor), strides = strides_of(tensor);
      auto* const to = place(tensor);
      for_each(dims, [&](const Index& i) {
        const auto at = offset(i, strides);
        if (type_of(tensor) == DataType::bf16) {
          reinterpret_cast<terrace::bf16*>(to)[at] = terrace::bf16(values[dense(i, dims)]);
        } else {
          reinterpret_cast<float*>(to)[at] = values[dense(i, dims)];
        }
      });
    }
    between_[&tensor] = std::move(values);
  }

  void matmul(const Object& o) {
    const auto &a = o.object(Name::matmul_a), &b = o.object(Name::matmul_b), &c = o.object(Name::matmul_c);
    const auto da = dims_of(a), db = dims_of(b), dc = dims_of(c);
    if (da[2] != dc[2] || db[3] != dc[3] || da[3] != db[2]) misuse("a product whose sides do not match");
    const auto va = load(a), vb = load(b);
    Values vc(count_of(dc));
    for_each(dc, [&](const Index& i) {
      const auto head = shared({i[0], i[1], 0, 0}, {dc[0], dc[1], 1, 1}, {db[0], db[1], 1, 1});
      double sum = 0;
      for (std::int64_t k = 0; k < da[3]; ++k)
        sum += static_cast<double>(va[dense({i[0], i[1], i[2], k}, da)]) *
               static_cast<double>(vb[dense({head[0], head[1], k, i[3]}, db)]);
      vc[dense(i, dc)] = static_cast<float>(sum);
    });
    store(c, std::move(vc));
  }

  void pointwise(const Object& o) {
    const auto& how = o.object(Name::pointwise_description);
    const auto mode = static_cast<Pointwise>(how.one<int>(Name::pointwise_mode));
    const auto &x = o.object(Name::pointwise_x), &y = o.object(Name::pointwise_y);
    const auto dy = dims_of(y), dx = dims_of(x);
    const auto axis = mode == Pointwise::index ? static_cast<std::size_t>(how.one<std::int64_t>(Name::pointwise_axis)) : 0;
    const auto vx = mode == Pointwise::index ? Values() : load(x);
    const auto operand = [&](Name name, Index& dims) {
      if (!o.attributes.contains(name)) return Values();
      dims = dims_of(o.object(name));
      return load(o.object(name));
    };
    Index db{}, dt{};
    const auto vb = operand(Name::pointwise_b, db), vt = operand(Name::pointwise_t, dt);
    Values vy(count_of(dy));
    for_each(dy, [&](const Index& i) {
      const float p = vx.empty() ? 0 : vx[dense(shared(i, dy, dx), dx)];
      const float q = vb.empty() ? 0 : vb[dense(shared(i, dy, db), db)];
      const float t = vt.empty() ? 0 : vt[dense(shared(i, dy, dt), dt)];
      vy[dense(i, dy)] = value(mode, p, q, t, static_cast<float>(i[axis]));
    });
    store(y, std::move(vy));
  }
  static float value(Pointwise mode, float x, float b, float t, float index) {
    switch (mode) {
      case Pointwise::add: return x + b;
      case Pointwise::mul: return x * b;
      case Pointwise::div: return x / b;
      case Pointwise::sub: return x - b;
      case Pointwise::exp: return std::exp(x);
      case Pointwise::log: return std::log(x);
      case Pointwise::is_at_least: return x >= b ? 1.0F : 0.0F;
      case Pointwise::index: return index;
      case Pointwise::select: return t != 0 ? x : b;
    }
    misuse("a pointwise mode that the made-up cuDNN does not know");
  }

  void reduction(const Object& o) {
    const auto& how = o.object(Name::reduction_description);
    const bool largest = static_cast<Reduction>(how.one<int>(Name::reduction_operator)) == Reduction::max;
    if (how.one<char>(Name::reduction_is_deterministic) == 0) misuse("a sum in no order");
    const auto &x = o.object(Name::reduction_x), &y = o.object(Name::reduction_y);
    const auto dx = dims_of(x), dy = dims_of(y);
    const auto vx = load(x);
    Values vy(count_of(dy), largest ? -INFINITY : 0.0F);
    for_each(dx, [&](const Index& i) {
      auto& to = vy[dense(shared(i, dx, dy), dy)];
      to = largest ? std::max(to, vx[dense(i, dx)]) : to + vx[dense(i, dx)];
    });
    store(y, std::move(vy));
  }

  // Reads the same memory with other strides.
  void reshape(const Object& o) {
    const auto &x = o.object(Name::reshape_x), &y = o.object(Name::reshape_y);
    const auto dx = dims_of(x), sx = strides_of(x), dy = dims_of(y), sy = strides_of(y);
    const auto vx = load(x);
    std::map<std::int64_t, float> memory;
    for_each(dx, [&](const Index& i) { memory[offset(i, sx)] = vx[dense(i, dx)]; });
    Values vy(count_of(dy));
    for_each(dy, [&](const Index& i) {
      const auto at = memory.find(offset(i, sy));
      if (at == memory.end()) misuse("a reshape that leaves its tensor");
      vy[dense(i, dy)] = at->second;
    });
    store(y, std::move(vy));
  }

  const Object& graph_;
  std::map<std::int64_t, std::byte*> memory_;
  std::byte* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  std::map<const Object*, Values> between_;
};

// ---- engines ----

// As on an H100: engine 6 is proposed first and has a knob, 7 is the next, 1 is the fallback.
void describe_engine(Object& engine, std::int64_t index, const Object* graph) {
  engine.put<std::int64_t>(Name::engine_index, Type::int64, {index});
  engine.put<const Object*>(Name::engine_graph, Type::object, {graph});
  engine.put<int>(Name::engine_notes, Type::numerical_note,
                  fake.nondeterministic && index == 6 ? std::vector<int>{0, kNondeterministic} : std::vector<int>{0});
  engine.finalized = true;
}

struct Proposal {
  std::int64_t engine;
  std::vector<std::pair<int, std::int64_t>> knobs;
};
std::vector<Proposal> proposals(const Object& heuristics) {
  if (!fake.has_engines) return {};
  if (static_cast<Heuristic>(heuristics.one<int>(Name::heuristics_mode)) == Heuristic::fallback) return {{1, {}}};
  return {{6, {{24, 26}}}, {7, {{24, 26}, {40, 2}}}};
}

// The engine and knobs of a configuration; a heuristic's configuration stores them itself.
struct Config {
  std::int64_t engine;
  const Object* graph;
  std::string words;
};
constexpr auto kOwnEngine = static_cast<Name>(-1), kOwnKnobs = static_cast<Name>(-2), kOwnGraph = static_cast<Name>(-3);
Config config_of(const Object& config) {
  Config c{};
  std::vector<std::int64_t> knobs;
  if (config.attributes.contains(kOwnEngine)) {
    c.engine = config.one<std::int64_t>(kOwnEngine);
    c.graph = config.one<const Object*>(kOwnGraph);
    knobs = config.all<std::int64_t>(kOwnKnobs);
  } else {
    const auto& engine = config.object(Name::config_engine);
    c.engine = engine.one<std::int64_t>(Name::engine_index);
    c.graph = engine.one<const Object*>(Name::engine_graph);
    for (const auto* knob : config.all<const Object*>(Name::config_knobs)) {
      knobs.push_back(knob->one<int>(Name::knob_type));
      knobs.push_back(knob->one<std::int64_t>(Name::knob_value));
    }
  }
  for (std::size_t i = 0; i < knobs.size(); i += 2) c.words += fmt::format(" {}={}", knobs[i], knobs[i + 1]);
  c.words = fmt::format("engine {}, knobs{}", c.engine, knobs.empty() ? " none" : c.words);
  known(c.graph);
  return c;
}

// The gradient is the graph with a reshape; its scores are the result of its first product.
std::size_t workspace_of(const Object& graph) {
  constexpr std::size_t kAlways = 256;
  const auto operations = graph.all<const Object*>(Name::graph_operations);
  if (std::ranges::none_of(operations, [](const auto* o) { return o->kind == Kind::reshape_operation; })) return kAlways;
  const auto first = std::ranges::find(operations, Kind::matmul_operation, &Object::kind);
  return fake.scores * count_of(dims_of((*first)->object(Name::matmul_c))) + kAlways;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

FakeCudnn* terrace_fake_cudnn() { return &fake; }

std::size_t cudnnGetVersion() { return fake.version; }
const char* cudnnGetErrorString(int status) {
  return status == 0          ? "CUDNN_STATUS_SUCCESS"
         : status / 1000 == 3 ? "CUDNN_STATUS_NOT_SUPPORTED"
                              : "CUDNN_STATUS_INTERNAL_ERROR";
}
void cudnnGetLastErrorString(char* message, std::size_t size) { std::snprintf(message, size, "%s", last_error.c_str()); }

int cudnnCreate(void** handle) {
  if (const int status = step()) return status;
  *handle = new int(0);
  ++fake.objects;
  return kSuccess;
}
int cudnnDestroy(void* handle) {
  delete static_cast<int*>(handle);
  --fake.objects;
  return kSuccess;
}
int cudnnSetStream(void*, void*) { return step(); }

int cudnnBackendCreateDescriptor(int kind, void** object) {
  if (const int status = step()) return status;
  auto* const made = new Object{static_cast<Kind>(kind)};
  alive.insert(made);
  ++fake.objects;
  *object = made;
  return kSuccess;
}
int cudnnBackendDestroyDescriptor(void* object) {
  alive.erase(&known(object));
  delete static_cast<Object*>(object);
  --fake.objects;
  return kSuccess;
}

int cudnnBackendSetAttribute(void* object, int name, int type, std::int64_t count, const void* values) {
  if (const int status = step()) return status;
  auto& o = known(object);
  if (o.finalized) misuse("an attribute of a finalized object");
  const auto bytes = size_of(static_cast<Type>(type)) * static_cast<std::size_t>(count);
  Attribute attribute{static_cast<Type>(type), count, std::vector<std::byte>(bytes)};
  std::memcpy(attribute.bytes.data(), values, bytes);
  o.attributes[static_cast<Name>(name)] = std::move(attribute);
  if (static_cast<Type>(type) == Type::object)
    for (const auto* referred : o.all<const Object*>(static_cast<Name>(name)))
      if (!known(referred).finalized) misuse("an object that is not finalized, as an attribute");
  return kSuccess;
}

int cudnnBackendFinalize(void* object) {
  if (const int status = step()) return status;
  auto& o = known(object);
  if (o.kind == Kind::engine) {
    const auto index = o.one<std::int64_t>(Name::engine_index);
    if (!fake.has_engines || (index != 1 && index != 6 && index != 7)) return unsupported("there is no such engine");
    describe_engine(o, index, &o.object(Name::engine_graph));
  }
  if (o.kind == Kind::plan) {
    const auto config = config_of(o.object(Name::plan_config));
    o.put<std::int64_t>(Name::plan_workspace_bytes, Type::int64, {static_cast<std::int64_t>(workspace_of(*config.graph))});
  }
  o.finalized = true;
  return kSuccess;
}

int cudnnBackendGetAttribute(const void* object, int name, int type, std::int64_t room, std::int64_t* count, void* values) {
  if (const int status = step()) return status;
  auto& o = known(object);
  if (!o.finalized) misuse("a question to an object that is not finalized");
  const auto given = [&] {
    std::vector<Object*> objects(static_cast<std::size_t>(room));
    if (room > 0) std::memcpy(objects.data(), values, objects.size() * sizeof(void*));
    return objects;
  };
  if (o.kind == Kind::heuristics && static_cast<Name>(name) == Name::heuristics_results) {
    const auto all = proposals(o);
    const auto into = given();
    *count = into.empty() ? static_cast<std::int64_t>(all.size()) : 0;
    for (std::size_t i = 0; i < std::min(into.size(), all.size()); ++i, ++*count) {
      std::vector<std::int64_t> knobs;
      for (const auto& [kind, value] : all[i].knobs) knobs.push_back(kind), knobs.push_back(value);
      into[i]->put<std::int64_t>(kOwnEngine, Type::int64, {all[i].engine});
      into[i]->put<const Object*>(kOwnGraph, Type::object, {&o.object(Name::heuristics_graph)});
      into[i]->put(kOwnKnobs, Type::int64, knobs);
      into[i]->finalized = true;
    }
    return kSuccess;
  }
  if (o.kind == Kind::engine_config && static_cast<Name>(name) == Name::config_engine) {
    describe_engine(*given().at(0), config_of(o).engine, config_of(o).graph);
    *count = 1;
    return kSuccess;
  }
  if (o.kind == Kind::engine_config && static_cast<Name>(name) == Name::config_knobs) {
    const auto knobs = o.all<std::int64_t>(kOwnKnobs);
    const auto into = given();
    *count = 0;
    for (std::size_t i = 0; i < std::min(into.size(), knobs.size() / 2); ++i, ++*count) {
      into[i]->put<int>(Name::knob_type, Type::knob, {static_cast<int>(knobs[2 * i])});
      into[i]->put<std::int64_t>(Name::knob_value, Type::int64, {knobs[2 * i + 1]});
      into[i]->finalized = true;
    }
    return kSuccess;
  }
  const auto at = o.attributes.find(static_cast<Name>(name));
  if (at == o.attributes.end()) return 2000;  // CUDNN_STATUS_BAD_PARAM
  if (at->second.type != static_cast<Type>(type)) misuse("a question of another type");
  *count = std::min(room, at->second.count);
  std::memcpy(values, at->second.bytes.data(), static_cast<std::size_t>(*count) * size_of(at->second.type));
  return kSuccess;
}

int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  if (const int status = step()) return status;
  auto &p = known(plan), &v = known(pack);
  if (!handle || !p.finalized || !v.finalized) misuse("a plan or a variant pack that is not finalized");
  const auto config = config_of(p.object(Name::plan_config));
  if (!config.graph->attributes.contains(Name::graph_handle)) misuse("a plan for no GPU");
  Run(*config.graph, v, static_cast<std::size_t>(p.one<std::int64_t>(Name::plan_workspace_bytes)))();
  ++fake.executed;
  fake.ran.push_back(config.words);
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
