// Draining one GPU, when told to (gpulet.mig.drain): the Pods that hold what must go are asked to leave
// through the Eviction API, and waited for until the kubelet no longer has them on the GPU. No process is
// ever killed. Loop's thread only.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/mig_ports.h"
#include "base/backoff.h"

namespace gpulet::agent {

// A GPU is drained this long, withdrawn all the while; then it is put back as it is, and tried again within
// the backoff.
inline constexpr Duration kMigDrainLimit = std::chrono::minutes(10);
inline constexpr BackoffLimits kMigDrainBackoff{std::chrono::minutes(1), std::chrono::minutes(30)};
// How often the kubelet is asked meanwhile.
inline constexpr Duration kMigDrainPoll = std::chrono::seconds(1);
// A container's processes may outlive the kubelet's record of it by so much; later ones are no Pod's.
inline constexpr Duration kMigLinger = std::chrono::seconds(10);

// Of `pods`, those because of which the plan is blocked, by name. Pure.
std::vector<std::string> pods_in_the_way(const mig::Plan& plan, const mig::Pods& pods);

// Whether nothing is in the way but Pods and, on what these hold, processes, which are taken for theirs.
// Where a process alone holds what must go, no Pod is disturbed for nothing. Pure.
bool drain_would_do(const mig::Plan& plan);

class MigDrain {
 public:
  using Report = std::function<void(Reporter::Severity, std::string_view reason, const std::string& message)>;

  // `gpu`, "GPU 3", and `why` ("the label …") for what is told.
  MigDrain(const MigPorts& ports, std::string gpu, std::string why, Report report);

  // What is in the way now: `pods`, or only processes where that is empty. Asks those that were not asked
  // yet. Why there is no use in waiting on; nullopt while there is.
  std::optional<std::string> step(const std::vector<std::string>& pods);

 private:
  void ask(std::vector<std::string> pods);
  void on_news(const cluster::EvictionNews& news);

  const MigPorts& ports_;
  const std::string gpu_, why_;
  Report report_;
  const Time deadline_;
  std::set<std::string> asked_;
  std::map<std::string, std::string> waiting_;  // why, by Pod
  std::optional<std::string> useless_;
  std::optional<Time> empty_since_;  // of Pods
  std::vector<std::unique_ptr<cluster::Eviction>> evictions_;
};

}  // namespace gpulet::agent
