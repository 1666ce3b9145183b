// Facts from the node's daemons (probe_node.cpp: the driver, the agent, the kubelet and MPS control daemons)
// and from the API server (probe_cluster.cpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "doctor/collect.h"
#include "doctor/host_files.h"
#include "nvml/worker.h"

namespace gpulet::doctor {

// Runs work with a timeout: on the loop, or on its own thread.
class Prober {
 public:
  Prober() : worker_(loop_) {}
  Prober(const Prober&) = delete;

  EpollLoop& loop() { return loop_; }

  template <class T>
  Result<T> run_on_thread(const std::string& what, std::function<Result<T>()> work) {
    std::optional<Result<T>> result;
    worker_.run_call<T>({what, what, kProbeTimeout}, std::move(work), [&](Result<T> done) {
      result.emplace(std::move(done));
      loop_.stop_loop();
    });
    loop_.run_loop();
    return std::move(*result);
  }

  // `start` begins an asynchronous operation that calls its argument once on the loop.
  template <class T>
  Result<T> run_on_loop(const std::string& what, Duration limit,
                        const std::function<void(std::function<void(Result<T>)>)>& start) {
    const auto result = std::make_shared<std::optional<Result<T>>>();
    const auto finish = [this, result](Result<T> done) {
      if (*result) return;
      result->emplace(std::move(done));
      loop_.stop_loop();
    };
    const auto over = loop_.after(
        limit, [finish, what] { finish(fail(Code::kDeadlineExceeded, what + " did not respond in time")); });
    start(finish);
    loop_.run_loop();
    return std::move(**result);
  }

 private:
  EpollLoop loop_;
  nvml::Worker worker_;
};

// Reads every GPU with NVML. `sys_roots`: where sysfs may be mounted. Errors: those of opening and reading
// the driver; one GPU's error is part of its facts.
Result<DriverFacts> probe_driver(Prober& prober, const std::string& driver_root,
                                 const std::vector<std::string>& sys_roots);

// Fetches the agent's pages and adds them to `files`; `config` receives the agent's configuration. Errors:
// kNotFound without an agent; kInvalidArgument for another server; those of the connection.
Result<AgentFacts> probe_agent(Prober& prober, const ProbeTargets& targets, std::string& config,
                               std::vector<ArchiveFile>& files);
// Parses /api/node. Errors: kInvalidArgument for another document.
Result<AgentFacts> parse_agent_page(const std::string& document, std::string& config);
// The settings from the agent's configuration, else from ProbeTargets::config_file. Errors: kNotFound without
// either.
Result<AgentSettings> agent_settings(const Result<AgentFacts>& agent, const std::string& config,
                                     const ProbeTargets& targets);

KubeletFacts probe_kubelet(Prober& prober, const ProbeTargets& targets, const HostTrees& trees);
// Connects to each MPS control daemon below `root` and runs a query on it.
Result<std::vector<MpsDaemon>> probe_mps_daemons(Prober& prober, const HostTrees& trees,
                                                 const std::string& root);

// Facts from the API server, and explanations of pending Pods.

// Our user, the API server's clock, the agent's permissions, MIG state and pending Pods, within
// kClusterTimeout. The clock comes from the creation timestamp of a SelfSubjectReview, which every user may
// create. Errors: without access, without a response, or with rejected credentials; other errors are part of
// the facts. Source: Kubernetes API, authentication.k8s.io/v1, authorization.k8s.io/v1.
Result<ClusterFacts> probe_cluster(Prober& prober, const ProbeTargets& targets);

// Explains the first kMaxExplained pending Pods within kExplainTimeout, as `gpulet explain` does: by the
// extender, or locally without one.
void explain_pending_pods(Prober& prober, const ProbeTargets& targets, std::vector<PendingPod>& pods);
// Parses the JSON of `gpulet explain`; `node` comes first. Errors: kInvalidArgument for another document.
Result<PodExplanation> parse_explanation(const std::string& document, const std::string& node);

}  // namespace gpulet::doctor
