// `kubectl gpulet`, a plugin of kubectl: the GPUs of a whole cluster from a person's machine, through the API
// server that a kubeconfig names, with kubectl's options. kubectl finds it by its name, kubectl-gpulet, and
// its completions by kubectl_complete-gpulet; both are links to gpulet.
//
// Source: Kubernetes, "Extend kubectl with plugins".
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "arguments/command_doc.h"
#include "base/loop.h"
#include "cli/kubectl/cluster_gpus.h"
#include "cli/main/command.h"
#include "extender/explain_client.h"
#include "extender/page_watcher.h"
#include "k8s/client_config.h"
#include "k8s/watcher.h"

namespace gpulet::cli::kubectl {

inline constexpr Duration kRequestLimit = std::chrono::seconds(30);  // of one answer of the API server

// Which cluster.
struct ClusterOptions {
  std::string kubeconfig, context;  // empty: as kubectl finds them
};

// `list`, `health` and `top`.
struct ClusterGpuOptions {
  ClusterOptions cluster{};
  GpuView view = GpuView::kList;
  std::vector<std::string> nodes{};  // empty: all
  std::string selector{};            // of Nodes' labels; empty: all. Evaluated once, also by a watch
  std::string name_space{};          // only GPUs that a Pod of it holds; empty: all
  bool all_namespaces = false;       // overrides name_space, as kubectl's does
  LoadOrder order = LoadOrder::kNone;
  bool watch = false;
  OutputOptions output{};  // also "name"
};

// One reading of the cluster. Needs list on gpunodes, with a selector also list on nodes. Exit code: 0, also
// without a GPU; kNeedsAction if `health` shows one that is out of service; 1 if the cluster cannot be read,
// a named node publishes no GPUs, or a GpuNode cannot be decoded (the others are printed); 2 for an invalid
// name.
CommandOutput cluster_gpus_output(const ClusterGpuOptions& options, const k8s::ClientConfig& access);

// Follows the GpuNodes of a cluster. Needs list and watch on gpunodes. Loop's thread only.
class ClusterGpuWatcher {
 public:
  // Calls `print` from the loop with the text to print: GpuTableWatch's rows, or a document or names whenever
  // they differ. While the API server is unreachable or refuses, which is logged, nothing is called.
  ClusterGpuWatcher(Loop& loop, const ClusterGpuOptions& options, const k8s::ClientConfig& access,
                    GpuSelection selection, std::function<void(const std::string&)> print);
  ~ClusterGpuWatcher();
  ClusterGpuWatcher(const ClusterGpuWatcher&) = delete;

 private:
  void print_soon();
  void report_problems();
  void print_changes();

  Loop& loop_;
  const ClusterGpuOptions options_;
  const GpuSelection selection_;
  const std::function<void(const std::string&)> print_;
  GpuCollection collection_;
  GpuTableWatch table_;
  std::set<std::string> unlisted_;  // nodes that the current list has not had yet
  bool listing_ = true, pending_ = false, first_ = true;
  std::string last_document_;
  std::map<std::string, std::string> reported_;  // problems, by node
  Subscription timer_;
  std::unique_ptr<k8s::CollectionWatcher> watch_;
};

// Prints the GPUs; with `watch` then each change, until standard output is closed. Needs also watch on
// gpunodes.
int run_cluster_gpus(const ClusterGpuOptions& options, const k8s::ClientConfig& access);

// `doctor`, see cluster_doctor.h.
struct ClusterDoctorOptions {
  ClusterOptions cluster{};
  std::string agent_selector = extender::kAgentSelector;
  std::string service = extender::kDefaultService;  // of the scheduler extender; empty: none
  OutputOptions output{};
};

// Exit code: 0; 1 if a check fails, or no check could read what it needs; 2 for an invalid service.
CommandOutput cluster_doctor_output(const ClusterDoctorOptions& options, const k8s::ClientConfig& access);

// kubectl-gpulet, and kubectl_complete-gpulet. Return: the exit code.
int plugin_main(int argc, char** argv);
int plugin_complete_main(int argc, char** argv);

// For its man page, kubectl-gpulet(1).
arguments::CommandDoc describe_plugin();

}  // namespace gpulet::cli::kubectl
