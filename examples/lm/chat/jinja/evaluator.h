// Runs a template on given values and returns the text that it writes.
//
// Owner:   the caller; borrows the tree and the Runtime for one call. Threads: one at a time.
// Errors:  Fault; line() then returns the line where it happened.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/examples/lm/chat/jinja/tree.h>
#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

// The bytes of the text from `begin` to `end`.
struct Span {
  std::size_t begin = 0, end = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

class Evaluator {
 public:
  Evaluator(Runtime& runtime, std::vector<std::pair<std::string, Value>> globals);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  std::string write(const Body& body);
  [[nodiscard]] const std::vector<Span>& generated() const { return generated_; }  // the {% generation %} blocks
  [[nodiscard]] int line() const { return line_; }

 private:
  struct Scope;
  using ScopePtr = std::shared_ptr<Scope>;
  enum class Flow : std::uint8_t { on, leave, go_on };

  Flow run(const Body& body, const ScopePtr& scope);
  Flow run(const Statement& statement, const ScopePtr& scope);
  Flow run_loop(const Statement& statement, const ScopePtr& scope);
  void run_call(const Statement& statement, const ScopePtr& scope);
  void run_generation(const Statement& statement, const ScopePtr& scope);
  Draft captured(const Body& body, const ScopePtr& scope, Flow& flow);
  void write_value(const Value& value);

  Value macro_of(const Statement& statement, const ScopePtr& scope, std::string name);
  Value call_macro(const Statement& macro, const ScopePtr& scope, const std::string& name, Arguments& given);

  Value unpacked(const Target& target, const Value& value);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  ScopePtr inside(const ScopePtr& scope);
  void set(const ScopePtr& scope, std::string_view name, Value value);
  void keep(const ScopePtr& scope);

  Value evaluate(const Expression& e, const ScopePtr& scope);
  Value evaluate_or_none(const Part& part, const ScopePtr& scope);
  Value find(const std::string& name, const Scope& scope);
  bool compare_chain(const Expression& e, const ScopePtr& scope);
  Value concat(const Expression& e, const ScopePtr& scope);
  Value dict(const Expression& e, const ScopePtr& scope);
  Value filtered(const Expression& e, const ScopePtr& scope, const Value* captured);
  Value call(const Expression& e, const ScopePtr& scope, const Value* caller);
  Arguments arguments_of(const Expression& e, const ScopePtr& scope);
  Values values_of(const std::vector<Part>& parts, std::size_t from, const ScopePtr& scope);

  Runtime& runtime_;
  ScopePtr globals_;
  std::vector<ScopePtr> kept_scopes_;  // scopes that macros refer to
  Draft all_;
  Draft* out_ = &all_;
  std::vector<Span> generated_;
  bool in_generation_ = false;
  int line_ = 1;
};

}  // namespace terrace::lm::jinja
