#include <terrace/examples/terrace/plan/cluster.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <terrace/core/base/nesting.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/plan/shipped_clusters.h>

namespace terrace::cli {
namespace {

using P = ClusterProfile;

// The nodes that a key describes.
enum class Nodes : std::uint8_t { all, with_gpus, without_gpus };

struct Key {
  std::string_view section, key;
  std::variant<std::function<double&(P&)>, std::function<std::uint64_t&(P&)>, std::function<std::int64_t&(P&)>> field;
  Nodes of = Nodes::all;
};

using GpuPart = decltype(P::gpu);
using CpuPart = decltype(P::cpu);
using NodePart = decltype(P::node);
using LinksPart = decltype(P::links);

template <class Part, class T>
Key key(std::string_view section, std::string_view name, Part P::*part, T Part::*field, Nodes nodes = Nodes::all) {
  return {section, name, std::function<T&(P&)>([=](P& p) -> T& { return p.*part.*field; }), nodes};
}

const std::vector<Key>& cluster_keys() {
  static const std::vector<Key> all{
      key("gpu", "memory", &P::gpu, &GpuPart::memory, Nodes::with_gpus),
      key("gpu", "matmul-bf16-flop-s", &P::gpu, &GpuPart::matmul_bf16_flop_s, Nodes::with_gpus),
      key("gpu", "matmul-fp32-flop-s", &P::gpu, &GpuPart::matmul_fp32_flop_s, Nodes::with_gpus),
      key("gpu", "matmul-fp64-flop-s", &P::gpu, &GpuPart::matmul_fp64_flop_s, Nodes::with_gpus),
      key("gpu", "memory-bytes-s", &P::gpu, &GpuPart::memory_bytes_s, Nodes::with_gpus),
      key("gpu", "upload-bytes-s", &P::gpu, &GpuPart::upload_bytes_s, Nodes::with_gpus),
      key("gpu", "download-bytes-s", &P::gpu, &GpuPart::download_bytes_s, Nodes::with_gpus),
      key("cpu", "cores", &P::cpu, &CpuPart::cores, Nodes::without_gpus),
      key("cpu", "matmul-bf16-flop-s", &P::cpu, &CpuPart::matmul_bf16_flop_s, Nodes::without_gpus),
      key("cpu", "matmul-fp32-flop-s", &P::cpu, &CpuPart::matmul_fp32_flop_s, Nodes::without_gpus),
      key("cpu", "matmul-fp64-flop-s", &P::cpu, &CpuPart::matmul_fp64_flop_s, Nodes::without_gpus),
      key("node", "gpus", &P::node, &NodePart::gpus, Nodes::with_gpus),
      key("node", "memory", &P::node, &NodePart::memory),
      key("node", "memory-bytes-s", &P::node, &NodePart::memory_bytes_s),
      key("node", "upload-bytes-s", &P::node, &NodePart::upload_bytes_s, Nodes::with_gpus),
      key("node", "download-bytes-s", &P::node, &NodePart::download_bytes_s, Nodes::with_gpus),
      key("node", "nvme", &P::node, &NodePart::nvme),
      key("node", "nvme-read-bytes-s", &P::node, &NodePart::nvme_read_bytes_s),
      key("node", "nvme-write-bytes-s", &P::node, &NodePart::nvme_write_bytes_s),
      key("node", "nvme-both-bytes-s", &P::node, &NodePart::nvme_both_bytes_s),
      key("node", "nvme-latency-s", &P::node, &NodePart::nvme_latency_s),
      key("links", "within-bytes-s", &P::links, &LinksPart::within_bytes_s),
      key("links", "within-latency-s", &P::links, &LinksPart::within_latency_s),
      key("links", "between-bytes-s", &P::links, &LinksPart::between_bytes_s),
      key("links", "between-latency-s", &P::links, &LinksPart::between_latency_s),
  };
  return all;
}

constexpr std::array<std::string_view, 4> kClusterSections{"gpu", "cpu", "node", "links"};

// Reads the text of a profile. The name is for messages.
class Reader {
 public:
  Reader(std::string_view text, std::string name) : name_(std::move(name)) {
    constexpr auto kCorrect = "examples/clusters/dgx2.toml is a correct one";
    constexpr std::size_t kLongMessage = 200;
    try {
      base::demand_shallow_toml(text);
      root_ = toml::parse(text, name_);
    } catch (const toml::parse_error& e) {
      refuse(fmt::format(", line {}", e.source().begin.line), base::printable(e.description(), kLongMessage), kCorrect);
    } catch (const Error& error) {
      refuse("", error.what(), kCorrect);
    }
  }

  P read() {
    demand_known();
    P profile;
    for (const auto& k : cluster_keys()) {
      if (!is_asked(k)) continue;
      const auto* const node = root_[k.section][k.key].node();
      if (node) {
        std::visit([&](const auto& field) { set(k, *node, field(profile)); }, k.field);
      } else {
        refuse("", fmt::format("{}.{} is missing", k.section, k.key), fmt::format("add {} = … to [{}]", k.key, k.section));
      }
    }
    return profile;
  }

 private:
  [[noreturn]] void refuse(const std::string& where, const std::string& why, const std::string& mend) const {
    throw base::Refused(fmt::format("cluster profile {}{}: {}\n  {}", name_, where, why, mend));
  }
  [[noreturn]] void refuse(const Key& k, const toml::node& node, const std::string& accepted) const {
    refuse(fmt::format(", line {}", node.source().begin.line), fmt::format("{}.{} is not {}", k.section, k.key, accepted),
           fmt::format("give {} = {}", k.key, accepted));
  }

  // A profile has one kind of nodes: [cpu] takes the place of [gpu].
  [[nodiscard]] bool is_asked(const Key& k) const {
    return k.of == Nodes::all || (k.of == Nodes::without_gpus) == root_.contains("cpu");
  }

  void demand_known() const {
    if (root_.contains("cpu") && root_.contains("gpu"))
      refuse("", "it has both [gpu] and [cpu]", "give [gpu] for nodes that compute on GPUs, or [cpu] for nodes without them");
    for (const auto& [section, table] : root_) {
      const auto line = fmt::format(", line {}", section.source().begin.line);
      if (std::ranges::find(kClusterSections, section.str()) == kClusterSections.end() || !table.is_table())
        refuse(line,
               fmt::format("there is no section [{}]{}", base::printable(section.str()),
                           suggestion(section.str(), kClusterSections)),
               "the sections are gpu or cpu, node, and links");
      std::vector<std::string_view> known;
      for (const auto& k : cluster_keys())
        if (k.section == section.str() && is_asked(k)) known.push_back(k.key);
      for (const auto& [name, value] : *table.as_table()) {
        if (section.str() == "links" && name.str() == "sums")  // a key of older versions
          refuse(fmt::format(", line {}", name.source().begin.line), "links.sums is not a property of the links",
                 "remove it: the plan is for the sums that the run does, which --sum-order and --canonical-reduction choose");
        if (std::ranges::find(known, name.str()) == known.end())
          refuse(fmt::format(", line {}", name.source().begin.line),
                 fmt::format("unknown key {}.{}{}", section.str(), base::printable(name.str()), suggestion(name.str(), known)),
                 fmt::format("the keys of [{}] are {}", section.str(), fmt::join(known, ", ")));
      }
    }
  }

  void set(const Key& k, const toml::node& node, double& value) const {
    const auto number = node.value<double>();
    const bool latency = k.key.ends_with("latency-s");
    if (!node.is_number() || !number || !std::isfinite(*number) || *number < 0 || (*number == 0 && !latency))
      refuse(k, node, latency ? "a number of seconds, at least 0" : "a rate greater than 0, such as 2.5e10");
    value = *number;
  }
  void set(const Key& k, const toml::node& node, std::int64_t& value) const {
    const auto number = node.value_exact<std::int64_t>();
    if (!number || *number < 1 || *number > 65536) refuse(k, node, "a whole number from 1 to 65536");
    value = *number;
  }
  void set(const Key& k, const toml::node& node, std::uint64_t& value) const {
    const auto text = node.value_exact<std::string>();
    std::optional<std::uint64_t> bytes;
    try {
      if (text) bytes = parse_bytes(*text);
    } catch (const Error&) {  // reported below, with its key
    }
    if (!bytes || *bytes == 0 || *bytes == kUnlimited) refuse(k, node, "a size in quotes, such as \"32GB\" or \"1.5TiB\"");
    value = *bytes;
  }

  std::string name_;
  toml::table root_;
};

std::int64_t ranks_of_node(const ClusterProfile& cluster, const ClusterSize& size) {
  if (size.nodes < 1 || size.nodes > 65536)
    throw base::Refused(fmt::format("--nodes: {} is not accepted\n  give --nodes an integer from 1 to 65536", size.nodes));
  if (cluster.on_cpu() && size.gpus_per_node != 0)
    throw base::Refused(
        fmt::format("--gpus-per-node {}: a node of this cluster has no GPU\n  leave it out, or give another "
                    "--cluster-profile",
                    size.gpus_per_node));
  if (cluster.on_cpu()) return 1;
  if (size.gpus_per_node < 0 || size.gpus_per_node > cluster.node.gpus)
    throw base::Refused(fmt::format(
        "--gpus-per-node {}: a node of this cluster has {}\n  give --gpus-per-node at most {}, or 0 for all of them",
        size.gpus_per_node, cluster.node.gpus, cluster.node.gpus));
  return size.gpus_per_node == 0 ? cluster.node.gpus : size.gpus_per_node;
}

// What GPUs and CPUs have in common.
void set_rates(MachineProfile& p, std::string device, const auto& of) {
  p.device = std::move(device);
  p.matmul_bf16 = of.matmul_bf16_flop_s;
  p.matmul_fp32 = of.matmul_fp32_flop_s;
  p.matmul_fp64 = of.matmul_fp64_flop_s;
}

}  // namespace

ClusterProfile parse_cluster(std::string_view text, const std::string& name) { return Reader(text, name).read(); }

ClusterProfile load_cluster(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& why) {
    throw base::Refused(
        fmt::format("cluster profile {}: {}\n  give --cluster-profile a TOML file, such as examples/clusters/dgx2.toml, or "
                    "one of {}",
                    file.string(), why, fmt::join(shipped_clusters(), ", ")));
  };
  std::error_code unknown;
  if (const auto shipped = shipped_cluster(file.string()); shipped && !std::filesystem::exists(file, unknown))
    return parse_cluster(*shipped, file.string());
  std::string text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    refuse(error.what());
  }
  return parse_cluster(text, file.string());
}

MachineProfile rank_profile(const ClusterProfile& cluster, const ClusterSize& size) {
  const auto ranks = ranks_of_node(cluster, size);
  const auto share = [&](double of_node) { return of_node / static_cast<double>(ranks); };
  const auto& [gpu, cpu, node, links] = cluster;
  MachineProfile p;
  p.memory_stream = share(node.memory_bytes_s);
  p.memory_copy = share(node.memory_bytes_s);
  if (cluster.on_cpu()) {
    set_rates(p, "cpu", cpu);
    p.threads = static_cast<int>(cpu.cores);
    p.memory_copy /= 2;  // it reads and writes each byte
    // A thread that copies, or checks what the disk reads, shares the cores with those that compute.
    p.compute_beside_copy = p.compute_beside_disk = static_cast<double>(cpu.cores) / static_cast<double>(cpu.cores + 1);
  } else {
    set_rates(p, "cuda:0", gpu);
    p.device_stream = gpu.memory_bytes_s;
    p.upload = std::min(gpu.upload_bytes_s, share(node.upload_bytes_s));
    p.download = std::min(gpu.download_bytes_s, share(node.download_bytes_s));
  }
  p.disk_read = share(node.nvme_read_bytes_s);
  p.disk_write = share(node.nvme_write_bytes_s);
  p.disk_both = share(node.nvme_both_bytes_s);
  p.disk_latency_s = node.nvme_latency_s;
  p.links = {.ranks_per_node = static_cast<std::uint32_t>(ranks),
             .within = links.within_bytes_s,
             .between = links.between_bytes_s,
             .within_latency_s = links.within_latency_s,
             .between_latency_s = links.between_latency_s};
  p.measured_at = "profile";
  return p;
}

RunConfig on_cluster(RunConfig c, const ClusterProfile& cluster, const ClusterSize& size) {
  const auto ranks = ranks_of_node(cluster, size), all = size.nodes * ranks;
  if (ranks % c.parallel.tp != 0)
    throw base::Refused(
        fmt::format("--tp {} does not divide the {} GPUs of a node\n  give another --tp, or --gpus-per-node a number that "
                    "it divides",
                    c.parallel.tp, ranks));
  if (ranks / c.parallel.tp % c.parallel.cp != 0)
    throw base::Refused(
        fmt::format("--cp {} does not divide the {} GPUs of a node{}\n  give another --cp, or --gpus-per-node a number "
                    "that it divides",
                    c.parallel.cp, ranks, c.parallel.tp == 1 ? "" : fmt::format(" divided by --tp {}", c.parallel.tp)));
  if (all / (c.parallel.tp * c.parallel.cp * c.parallel.pp) % c.parallel.ep != 0)
    throw base::Refused(
        fmt::format("--ep {} does not divide the {} GPUs of --nodes {} that are left by the other degrees\n  give another "
                    "--ep, or another number of nodes or GPUs",
                    c.parallel.ep, all / (c.parallel.tp * c.parallel.cp * c.parallel.pp), size.nodes));
  if (all / c.parallel.tp % c.parallel.pp != 0)
    throw base::Refused(
        fmt::format("--pp {} does not divide the {} GPUs of --nodes {}\n  give another --pp, or --gpus-per-node a "
                    "number that it divides",
                    c.parallel.pp, all / c.parallel.tp, size.nodes));
  if (c.parallel.ranks_per_machine != 0 && c.parallel.ranks_per_machine != ranks)
    throw base::Refused(
        fmt::format("--ranks-per-machine {}: a node of this plan has {} ranks\n  leave it out, or give --gpus-per-node",
                    c.parallel.ranks_per_machine, ranks));
  const auto data = all / (c.parallel.pp * c.parallel.tp * c.parallel.cp * c.parallel.ep);
  if (c.parallel.dp == 0) c.parallel.dp = data;
  if (c.parallel.dp != data)
    throw base::Refused(fmt::format("--dp {} is not --nodes {} times {} GPUs{}\n  leave --dp out, or give --dp {}",
                                    c.parallel.dp, size.nodes, ranks,
                                    (c.parallel.pp == 1 ? "" : fmt::format(" divided by --pp {}", c.parallel.pp)) +
                                        (c.parallel.tp == 1 ? "" : fmt::format(" divided by --tp {}", c.parallel.tp)) +
                                        (c.parallel.cp == 1 ? "" : fmt::format(" divided by --cp {}", c.parallel.cp)) +
                                        (c.parallel.ep == 1 ? "" : fmt::format(" divided by --ep {}", c.parallel.ep)),
                                    data));
  if (c.memory.device != "auto" && (c.memory.device == "cpu") != cluster.on_cpu())
    throw base::Refused(
        fmt::format("--device {}: a node of this cluster computes on {}\n  leave --device out, or give another "
                    "--cluster-profile",
                    c.memory.device, cluster.on_cpu() ? "its CPU" : "GPUs"));
  c.found.local_ranks = ranks;
  c.memory.device = cluster.on_cpu() ? "cpu" : "cuda:0";
  c.plan.assumed_costs = true;
  const auto usual = [](std::string& setting, std::uint64_t bytes) {
    if (setting == "auto" || setting == "unlimited") setting = std::to_string(bytes);
  };
  // On a CPU the device tier has half of the memory, as in a run there (usual_device_bytes()).
  const auto half = cluster.node.memory / 2;
  usual(c.memory.device_memory, (cluster.on_cpu() ? half : cluster.gpu.memory) / 100 * 95);
  usual(c.memory.host_memory, (cluster.on_cpu() ? half : cluster.node.memory) / 100 * 85);
  usual(c.memory.nvme_limit, cluster.node.nvme);
  return c;
}

}  // namespace terrace::cli
