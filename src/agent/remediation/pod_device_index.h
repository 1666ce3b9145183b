// An index of the Pods that hold devices: the kubelet's PodResources joined with the API server's Pods and
// namespaces. It is read only while a device has a fault, and once after start to find annotations of an
// earlier run.
//
// The kubelet names the Pod that holds a device; its identity, owner and annotations come from the API
// server. A Pod for which these are unknown is in no list: it is not notified, annotated or evicted by its
// name alone.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "device_plugin/pod_resources.h"
#include "health/policy/eviction_policy.h"
#include "health/report/node_health.h"
#include "k8s/object_reader.h"
#include "metrics/attribution.h"

namespace gpulet::agent {

// Interval of PodResources while a device has a fault: Pods come and go unannounced.
inline constexpr Duration kPodsPollInterval = std::chrono::seconds(10);
// API data is re-read after this time: an annotation may change, a deletion begin.
inline constexpr Duration kPodInfoTtl = std::chrono::seconds(30);
// API data older than this is not used: by then it was re-read, or the API server is unavailable.
inline constexpr Duration kPodInfoMaxAge = kPodInfoTtl + 2 * kPodsPollInterval;
inline constexpr BackoffLimits kPodsRetryBackoff{std::chrono::milliseconds(500), std::chrono::seconds(30)};
// Minimum interval of refreshes in a burst of changes.
inline constexpr Duration kRefreshMinInterval = std::chrono::milliseconds(100);
// Longer than the kubelet client's own timeout: a client that is replaced meanwhile loses its answer.
inline constexpr Duration kHoldersTimeout = std::chrono::seconds(15);
inline constexpr std::size_t kMaxKnownDevices = 4096;  // UUIDs whose scope is remembered

// A Pod as the eviction policy sees it, without its devices and its namespace's annotation.
health::PodOnDevice evictable_pod(const k8s::PodMetadata& pod);

struct HeldPod {
  health::PodOnDevice pod;
  bool is_current = false;                // its annotations and its namespace's are known and recent
  std::optional<std::string> annotation;  // its kFaultAnnotation
};

struct PodDeviceIndexPorts {
  Loop& loop;
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> holders;
  k8s::ObjectReader& reader;
  // After every refresh, also without changes. Called from the loop, not from inside a call.
  std::function<void()> changed;
};

// Loop's thread only.
class PodDeviceIndex {
 public:
  PodDeviceIndex(PodDeviceIndexPorts ports, std::uint64_t seed);

  struct Options {
    bool namespaces = false;  // read the annotations of namespaces
    bool all_pods = false;    // once, also Pods on devices without a fault
  };
  void update_index(const health::HealthView& view, Options wants);

  // The Pods that hold a device and whose API data is known, by namespace and name.
  std::vector<HeldPod> held_pods() const;
  // Why data is missing; empty if none is.
  const std::string& last_problem() const { return problem_; }

 private:
  struct PodEntry {
    std::set<health::Scope> devices;
    std::optional<k8s::PodMetadata> facts;
    std::optional<Time> read;  // when it was read
  };
  struct NamespaceEntry {
    k8s::Annotations annotations;
    std::optional<Time> read;
    bool reading = false;
  };
  using Name = std::pair<std::string, std::string>;  // namespace, name

  void update_scopes(const health::HealthView& view);
  void refresh_pods();
  void on_holders(const Result<std::vector<ContainerDevices>>& holders);
  void read_pods();
  void read_namespace(const std::string& name);
  bool is_relevant(const PodEntry& known) const;
  bool is_fresh(const std::optional<Time>& read, Duration than) const;
  void on_failure(const Error& error);
  void finish_refresh();

  PodDeviceIndexPorts ports_;
  Backoff backoff_;
  Options options_;
  std::map<DeviceUuid, health::Scope> scopes_;
  std::set<health::Scope> faulty_;
  std::map<Name, PodEntry> pods_;
  std::map<std::string, NamespaceEntry> namespaces_;
  bool read_all_ = false, all_read_ = false;
  bool refreshing_ = false, refresh_again_ = false, round_failed_ = false;
  std::uint64_t round_ = 0;
  std::size_t reading_ = 0;
  std::string problem_;
  std::set<std::string> reported_problems_;
  Subscription next_, limit_;
  Lifetime lifetime_;
};

// The labels of the Pods that hold devices, from the API server. Each Pod is read when it is first seen, and
// again after kPodLabelsTtl: labels rarely change.

// With 30 Pods per node, 5,000 nodes make 42 requests per second.
inline constexpr Duration kPodLabelsTtl = std::chrono::hours(1);

class PodLabelCache {
 public:
  using Labels = std::map<PodName, std::map<std::string, std::string>>;
  // `on_changed` gets the labels of all known Pods whenever they differ. Called from the loop.
  PodLabelCache(Loop& loop, k8s::ObjectReader& reader, std::function<void(const Labels&)> on_changed);

  // The current holders. Unknown Pods are read, gone ones dropped. A failed read is retried at the next call
  // and logged once.
  void on_containers(const std::vector<ContainerDevices>& containers);

 private:
  struct LabelEntry {
    std::map<std::string, std::string> labels;
    std::optional<Time> read;
    bool reading = false;
  };
  void request_labels(const PodName& pod);
  void publish_if_changed();

  Loop& loop_;
  k8s::ObjectReader& reader_;
  std::function<void(const Labels&)> on_changed_;
  std::map<PodName, LabelEntry> pods_;
  Labels labels_;  // as published
  std::string reported_problem_;
};

}  // namespace gpulet::agent
