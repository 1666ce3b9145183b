// The GPUs of a cluster as `kubectl gpulet` shows them: rows of the agents' GpuNodes, which of them a user
// asks for, and the tables, documents and names that are printed of them. Pure.
//
// All comes from GpuNodes (scheduler/model/gpu_node.h), so that list on gpunodes is the only permission that
// users need: what Pods hold is what the kubelet has reported, at most GpuNodeTiming::refresh_every old, and
// the load is at most GpuNodeTiming::load_every old (agent/publish/gpu_node_publisher.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/main/output.h"
#include "scheduler/core/cluster_state.h"

namespace gpulet::cli::kubectl {

// A Pod that holds shares of a GPU, or of its MIG devices.
struct GpuHolder {
  std::string name_space, pod, resource;
  unsigned shares = 0;
  friend bool operator==(const GpuHolder&, const GpuHolder&) = default;
};

struct ClusterMigDevice {
  std::string profile;  // "1g.10gb"
  unsigned held = 0, shares = 0, unavailable = 0;
  friend bool operator==(const ClusterMigDevice&, const ClusterMigDevice&) = default;
};

struct ClusterGpu {
  std::string node;
  std::size_t index = 0;
  std::string uuid, model, driver;
  std::uint64_t memory_mib = 0;
  std::optional<int> numa;
  std::string state;                 // extender::shown_state()
  bool in_service = true;            // it, and each of its MIG devices, may be allocated
  std::vector<std::string> reasons;  // extender::gpu_faults()
  unsigned busy_percent = 0, memory_percent = 0;
  unsigned held = 0, shares = 0, unavailable = 0;  // extender::GpuUse
  std::vector<ClusterMigDevice> mig_devices;
  std::vector<GpuHolder> holders;  // by Pod
  friend bool operator==(const ClusterGpu&, const ClusterGpu&) = default;

  // Out of service, or flagged: what `health` shows.
  bool needs_attention() const;
};

// In the order of their indices.
std::vector<ClusterGpu> cluster_gpus(const scheduler::ClusterNode& node);

// The GPUs of all nodes, by the objects that the API server lists. One thread.
class GpuCollection {
 public:
  // Adds or replaces a node. An object that cannot be decoded removes it, and is in problems().
  void apply_object(std::string_view gpu_node);
  void remove_node(const std::string& name);

  // nullptr where no GpuNode of that name was decoded.
  const scheduler::ClusterNode* find_node(const std::string& name) { return state_.find_node(name); }
  std::vector<std::string> node_names() const;
  std::vector<ClusterGpu> gpus() const;  // by node, then index
  // Objects that cannot be decoded: what is wrong, on one line, by name.
  const std::map<std::string, std::string>& problems() const { return problems_; }

 private:
  scheduler::ClusterState state_;
  std::map<std::string, std::vector<ClusterGpu>> nodes_;
  std::map<std::string, std::string> problems_;  // by node
};

// Which GPUs a command shows; an empty member selects all.
struct GpuSelection {
  std::set<std::string> nodes{};
  std::optional<std::set<std::string>> labelled_nodes{};  // those that -l matches
  std::string name_space{};                               // with a Pod of it
  bool attention_only = false;                            // ClusterGpu::needs_attention()
  bool selects_gpu(const ClusterGpu& gpu) const;
};

enum class GpuView { kList, kHealth, kTop };
enum class LoadOrder { kNone, kBusy, kMemory };

std::vector<ClusterGpu> select_gpus(const std::vector<ClusterGpu>& gpus, const GpuSelection& selection,
                                    LoadOrder order = LoadOrder::kNone);

// As kubectl prints a table: each GPU on one line, no cell cut. Empty without GPUs.
std::string gpu_table(const std::vector<ClusterGpu>& gpus, GpuView view, const TableStyle& style);
// "16 GPUs on 2 nodes, 1 out of service\n".
std::string service_summary(const std::vector<ClusterGpu>& all);
// docs/reference/kubectl-gpus.schema.json.
std::string gpu_document(const std::vector<ClusterGpu>& gpus);
// "node/n1" lines, each node once: names that kubectl takes.
std::string node_names_text(const std::vector<ClusterGpu>& gpus);

// What `--watch` prints in a table: at first all rows, then those that change, as kubectl does. A GPU that is
// not selected any more is printed once with its new state; one whose node is gone, with the state "removed".
class GpuTableWatch {
 public:
  GpuTableWatch(GpuView view, TableStyle style) : view_(view), style_(style) {}
  // The lines to print now, maybe none. `all`: every GPU of the cluster; `selected` of them.
  std::string update_rows(const std::vector<ClusterGpu>& all, const std::vector<ClusterGpu>& selected);

 private:
  using Key = std::pair<std::string, std::size_t>;  // node, index
  const GpuView view_;
  TableStyle style_;
  std::map<Key, ClusterGpu> printed_;
};

}  // namespace gpulet::cli::kubectl
