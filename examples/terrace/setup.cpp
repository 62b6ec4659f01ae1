#include <terrace/examples/terrace/setup.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include <terrace/core/philox.h>
#include <terrace/examples/terrace/options.h>

namespace terrace::cli {

lm::ModelConfig model_config(const RunConfig& c) {
  return lm::complete({.family = lm::parse_family(c.model),
                       .layers = c.layers,
                       .hidden = c.hidden,
                       .heads = c.heads,
                       .kv_heads = c.kv_heads,
                       .ffn = c.ffn,
                       .seq_len = c.seq_len,
                       .vocab = c.vocab,
                       .tied = !c.untied,
                       .dtype = parse_dtype(c.dtype)});
}

Budget budgets(const RunConfig& c) {
  const auto half = read_topology().available_memory_bytes / 2;
  Budget b;
  b.device = resolve_bytes(c.device_memory, half / 100 * 95);
  b.host = resolve_bytes(c.host_memory, half / 100 * 85);
  b.disk = c.nvme_path.empty() ? 0 : resolve_bytes(c.nvme_limit, kUnlimited);
  return b;
}

PlanRequest plan_request(const RunConfig& c) {
  PlanRequest r{.shape = {.batch = {c.batch_size, c.seq_len}, .micro_batches = static_cast<std::uint32_t>(c.grad_accumulation)},
                .budget = budgets(c),
                .disk_tier = !c.nvme_path.empty()};
  r.order = c.order == "horizontal" ? Order::horizontal : c.group > 0 ? Order::group_vertical : Order::vertical;
  r.group = static_cast<std::uint32_t>(c.group);
  r.recompute = c.recompute == "layer";
  r.updates_before_use = c.grad_clip > 0;  // the clip factor is known only when the backward has ended
  if (c.prefetch_depth != "auto") r.prefetch_depth = static_cast<std::uint32_t>(std::stoul(c.prefetch_depth));
  r.steps = static_cast<std::uint64_t>(c.steps);
  r.evaluate_every = static_cast<std::uint64_t>(c.eval_interval);
  r.evaluate_batches = static_cast<std::uint64_t>(c.eval_batches);
  r.commit_every = static_cast<std::uint64_t>(c.ckpt_interval);
  return r;
}

Schedule schedule(const RunConfig& c) {
  return {.kind = parse_schedule(c.lr_schedule),
          .peak = c.lr,
          .minimum = c.lr_schedule == "constant" ? c.lr : c.min_lr,
          .warmup_steps = static_cast<std::uint64_t>(std::min(c.warmup, c.steps)),
          .total_steps = static_cast<std::uint64_t>(std::max<std::int64_t>(1, c.steps))};
}

AdamWSettings adamw_settings(const RunConfig& c) {
  return {.beta1 = c.beta1, .beta2 = c.beta2, .eps = c.eps, .weight_decay = c.weight_decay};
}

MachineProfile machine_profile(const RunConfig& c) {
  if (!c.machine_profile.empty()) return load_profile(c.machine_profile);
  const auto saved = default_profile_path();
  return std::filesystem::exists(saved) ? load_profile(saved) : MachineProfile{};
}

void demand_device(const RunConfig& c) {
  if (c.device != "cpu")
    throw Error(fmt::format("device {} is not there: this build has the cpu device only; use --device cpu", c.device),
                Exit::hardware_missing);
}

ChunkStore::Options store_options(const RunConfig& c) {
  ChunkStore::Options o;
  if (c.nvme_path.empty()) {
    o.paths = {c.out_dir};
    o.name = "store";
  } else {
    o.paths = c.nvme_path;
    o.name = fmt::format("terrace-{:016x}", stream_of(std::filesystem::weakly_canonical(c.out_dir).c_str()));
  }
  return o;
}

nlohmann::json to_json(const Plan& p) {
  nlohmann::json j;
  j["fits"] = p.fits;
  j["parameters"] = p.parameters;
  j["state_bytes"] = p.state_bytes;
  j["chunk_elements"] = p.map.chunk_elements;
  j["smallest_bytes"] = {{"device", p.smallest_bytes[Tier::device]}, {"host", p.smallest_bytes[Tier::host]}};
  if (!p.fits) {
    j["tier"] = name_of(p.refusal.tier);
    j["missing_bytes"] = p.refusal.missing_bytes;
    j["why"] = p.refusal.why;
    j["suggestion"] = p.refusal.suggestion;
    return j;
  }
  j["step_time_s"] = p.times.seconds;
  j["peak_bytes"] = {
      {"device", p.peak_bytes[Tier::device]}, {"host", p.peak_bytes[Tier::host]}, {"nvme", p.peak_bytes[Tier::disk]}};
  const auto& t = p.steady_traffic;
  j["bytes"] = {{"read", t.read}, {"write", t.write}, {"h2d", t.upload}, {"d2h", t.download}};
  j["stall_s"] = nlohmann::json::object();
  for (const auto& [cause, seconds] : p.times.stall_s) j["stall_s"][cause] = seconds;
  j["floor_s"] = p.floor_s;
  j["binding"] = p.binding;
  j["update"] = name_of(p.map.update_tier);
  j["prefetch_depth"] = p.prefetch_depth;
  return j;
}

Error refusal_error(const Plan& p) {
  return Error(
      fmt::format("the plan does not fit into the {} tier: {} ({} bytes) are missing\n  {}\n  {}", name_of(p.refusal.tier),
                  format_bytes(p.refusal.missing_bytes), p.refusal.missing_bytes, p.refusal.why, p.refusal.suggestion),
      Exit::does_not_fit);
}

}  // namespace terrace::cli
