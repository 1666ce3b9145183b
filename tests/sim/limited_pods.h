// Pods with memory limits on a simulated node: their objects at an API server, and containers whose processes
// are in cgroups of the form that the kubelet and containerd make, on this machine's cgroup v2. Needs root.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/process.h"
#include "base/result.h"
#include "tests/sim/node_api.h"

namespace gpulet::tests {

inline constexpr const char* kLimitNode = "node-1";  // NodeApi's

// "/sys/fs/cgroup", or where a host with both versions of cgroups has v2. Errors: kNotFound.
Result<std::string> cgroup_mount();

// A launcher of the agent (sim::AgentOptions): with cgroup v2 at /sys/fs/cgroup, as on a node.
std::vector<std::string> cgroup_launcher();

// A container with its cgroup and its first process, which waits.
class TestContainer {
 public:
  // `uid`: of its Pod. `environment`: of its processes.
  static Result<std::unique_ptr<TestContainer>> start_container(const std::string& uid, const std::string& id,
                                                                std::vector<std::string> environment = {});
  // Ends its processes, and removes its cgroup.
  ~TestContainer();
  TestContainer(const TestContainer&) = delete;

  const std::string& id() const { return id_; }
  const std::string& uid() const { return uid_; }
  const std::string& cgroup() const { return cgroup_; }  // its directory on this machine
  unsigned pid() const { return static_cast<unsigned>(processes_.front()->pid()); }
  Process& process(std::size_t index) { return *processes_.at(index); }
  // Starts another process, in the cgroup or in `below` it.
  Result<unsigned> add_process(const std::string& below = {});
  // Its processes end; the cgroup stays, as until the runtime removes it.
  void end_processes();
  // What the runtime gives to a hook. `uid`, `name`, `pod` (in namespace "team"; empty: none): the
  // annotations.
  std::string oci_state(const std::string& uid, const std::string& name, const std::string& pod = {}) const;

 private:
  TestContainer(std::string uid, std::string id, std::vector<std::string> environment)
      : uid_(std::move(uid)), id_(std::move(id)), environment_(std::move(environment)) {}
  std::string uid_, id_, cgroup_;
  std::vector<std::string> environment_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// The API server of the node and its Pods.
class LimitedPods {
 public:
  explicit LimitedPods(const std::string& directory);
  ~LimitedPods();
  LimitedPods(const LimitedPods&) = delete;

  // A Pod of namespace "team" with the container "main"; a limit of 0: it requests none.
  static nlohmann::json make_pod(const std::string& name, const std::string& uid, unsigned limit_mib);
  void put_pod(const nlohmann::json& pod);
  nlohmann::json pod(const std::string& name);
  // Shows the id of the running container in the Pod's status.
  void set_container_id(const std::string& name, const std::string& id);

  // "REASON: MESSAGE" of the events about the Pod.
  std::vector<std::string> events_about(const std::string& name);
  // Of the agent.
  std::vector<std::string> environment() const;

 private:
  std::optional<k8s::TestApiServer::Reply> reply_to(const k8s::Received& request);

  std::mutex mutex_;
  std::map<std::string, nlohmann::json> pods_;
  std::unique_ptr<NodeApi> api_;  // last: its threads use the others
};

}  // namespace gpulet::tests
