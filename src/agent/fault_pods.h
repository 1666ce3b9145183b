// Which Pods hold which devices, and what is known of each: the kubelet's PodResources joined with the API
// server's Pod and its namespace. Asked only while a device has a fault, and once after start where notes of
// a run before this one are to be found.
//
// The kubelet says who holds what by name; whom a name means, who owns it and what it wants is the API
// server's to say. A Pod of which that is not known yet is in no list: nobody is told, noted or moved by its
// name alone.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/reader.h"
#include "health/moving.h"
#include "health/view.h"
#include "kubelet/pod_resources.h"

namespace gpulet::agent {

// How often the kubelet is asked while a device has a fault: Pods come and go without a word to us.
inline constexpr Duration kPodsPoll = std::chrono::seconds(10);
// What the API server said counts for so long: an annotation may change, a deletion begin.
inline constexpr Duration kFactsFresh = std::chrono::seconds(30);
// Somewhat longer: by then it was said again, or the API server is away.
inline constexpr Duration kFactsKept = kFactsFresh + 2 * kPodsPoll;
inline constexpr BackoffLimits kPodsBackoff{std::chrono::milliseconds(500), std::chrono::seconds(30)};
// A burst of changes is looked at so often at the most, but for the first of them.
inline constexpr Duration kLookAgain = std::chrono::milliseconds(100);
// Longer than the kubelet's client waits: who asks it may be made anew meanwhile, and its answer lost.
inline constexpr Duration kHoldersLimit = std::chrono::seconds(15);
inline constexpr std::size_t kMaxKnownDevices =
    4096;  // of which is remembered what part of which GPU they are

struct HeldPod {
  health::PodOnDevice pod;
  bool sure = false;                // what it and its namespace want is known, as of a moment ago
  std::optional<std::string> note;  // what its annotation kFaultAnnotation says
};

struct FaultPodsPorts {
  Loop& loop;
  std::function<void(std::function<void(Result<std::vector<kubelet::ContainerDevices>>)>)> holders;
  cluster::Reader& reader;
  // After every round, also one that learned nothing. From the loop, and not from inside a call.
  std::function<void()> changed;
};

// Loop's thread only.
class FaultPods {
 public:
  FaultPods(FaultPodsPorts ports, std::uint64_t seed);

  struct Wants {
    bool namespaces = false;  // their annotations count
    bool all = false;         // also Pods on devices without a fault, once
  };
  void update(const health::View& view, Wants wants);

  // Those that hold a device and are known well enough, by namespace and name.
  std::vector<HeldPod> pods() const;
  // What stands in the way of knowing more; empty while nothing does.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Known {
    std::set<health::Scope> devices;
    std::optional<cluster::PodFacts> facts;
    std::optional<Time> read;  // when facts were
  };
  struct Space {
    cluster::Annotations annotations;
    std::optional<Time> read;
    bool reading = false;
  };
  using Name = std::pair<std::string, std::string>;  // namespace, name

  void learn(const health::View& view);
  void look();
  void on_holders(const Result<std::vector<kubelet::ContainerDevices>>& holders);
  void read_pods();
  void read_namespace(const std::string& name);
  bool matters(const Known& known) const;
  bool younger(const std::optional<Time>& read, Duration than) const;
  void failed(const Error& error);
  void settle();

  FaultPodsPorts ports_;
  Backoff backoff_;
  Wants wants_;
  std::map<DeviceUuid, health::Scope> scopes_;
  std::set<health::Scope> faulty_;
  std::map<Name, Known> pods_;
  std::map<std::string, Space> spaces_;
  bool sweep_ = false, swept_ = false;  // all are to be read; were
  bool looking_ = false, again_ = false, round_failed_ = false;
  std::uint64_t round_ = 0;
  std::size_t reading_ = 0;
  std::string trouble_;
  std::set<std::string> told_;  // kinds of trouble
  Subscription next_, limit_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
