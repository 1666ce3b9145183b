// A simulated kubelet with the real device plugin protocol (Registration, dialling
// back, ListAndWatch, GetPreferredAllocation and Allocate at admission, NUMA hints, checkpoint,
// PodResources), for the demo, tests and benchmarks. It has no containers, init containers, memory and CPU
// managers. It calls no DRA driver: who does adds what the driver has prepared, and PodResources lists it.
//
// On its sockets a plugin sees no difference from the real kubelet. In the files, the
// checkpoint's checksum is FNV-1a of its data's JSON (the real one hashes a Go dump of the struct), so the
// two cannot read each other's checkpoint. It has the real one's fault too: a List of PodResources while an
// Allocate is in progress can make the next Pod get the same device (kubernetes/kubernetes#137534). Source:
// Kubernetes 1.36, pkg/kubelet/cm/devicemanager, topologymanager and dra.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::sim {

enum class TopologyPolicy { kNone, kBestEffort, kRestricted, kSingleNumaNode };

// Behaviour of Register. kDelay: after `register_delay`. kIgnore: no answer until the caller gives up.
enum class RegisterBehavior { kAccept, kRefuse, kDelay, kIgnore };

struct KubeletSettings {
  std::string dir;  // its /var/lib/kubelet, with device-plugins/ and pod-resources/
  TopologyPolicy topology = TopologyPolicy::kNone;
  std::chrono::milliseconds register_delay{300};
  // Between bind and listen of its sockets. A client that connects then is refused, as by the real kubelet.
  std::chrono::milliseconds listen_delay{0};
  // Padding in each PodResources response, to test large ones.
  std::size_t pod_resources_padding_bytes = 0;
  // Runs between a plugin's answer to Allocate and the record of it, with the devices' ids, and without a
  // lock but that of admissions: a test puts here what happens in that moment. May be empty.
  std::function<void(const std::vector<std::string>& ids)> allocate_answered = nullptr;
};

struct ContainerRequest {
  std::string name;
  std::map<std::string, unsigned> resources;  // resource name → count
  std::vector<std::string> claims{};          // names of ResourceClaims, in the Pod's order
};
struct PodRequest {
  std::string name_space = "default";
  std::string name;
  std::string uid;  // empty: from namespace and name
  std::vector<ContainerRequest> containers;
};

// A device of a claim, from its driver's answer to NodePrepareResources.
struct PreparedDevice {
  std::string driver, pool, device;
  std::optional<std::string> share_id{};
  std::vector<std::string> cdi_devices{};
};
struct PreparedClaim {
  std::string name_space, name;
  std::vector<PreparedDevice> devices;
};

// The union of the Allocate responses of a container's resources.
struct ContainerGrant {
  std::string name;
  std::map<std::string, std::vector<std::string>>
      devices;  // resource → ids: by NUMA node, then in order of allocation
  std::map<std::string, std::string> envs, annotations;
  struct Mount {
    std::string host_path, container_path;
    bool read_only = false;
  };
  struct Device {
    std::string host_path, container_path, permissions;
  };
  std::vector<Mount> mounts;
  std::vector<Device> device_specs;
  std::vector<std::string> cdi_devices;
};
struct PodGrant {
  std::string uid;
  std::vector<ContainerGrant> containers;
};

// A device as last reported by its plugin.
struct KubeletDevice {
  bool healthy = false;
  std::set<int> numa_nodes;
};

// The state of one resource.
struct KubeletResource {
  bool connected = false;  // its plugin's ListAndWatch is open
  std::string endpoint;
  bool preferred_allocation_available = false;
  std::map<std::string, KubeletDevice> devices;
  std::uint64_t registrations = 0;  // accepted since the construction
  std::uint64_t lists = 0;          // ListAndWatch messages received
  std::size_t capacity() const { return devices.size(); }
  std::size_t allocatable() const;  // healthy ones
};

// The duration of one call between kubelet and plugin.
struct CallLatency {
  std::string call;  // "GetDevicePluginOptions", "GetPreferredAllocation", "Allocate", "Register" (from its
                     // arrival to its answer), "FirstList" (from Register's answer to the first list)
  std::string resource;
  std::chrono::nanoseconds took{};
  bool ok = true;
};

struct KubeletState {
  bool running = false;
  std::uint64_t starts = 0;
  std::map<std::string, KubeletResource> resources;
  std::map<std::string, PodRequest> pods;  // by uid: admitted and not removed
  std::map<std::string, PodGrant> grants;  // by uid
  std::uint64_t refused_registrations = 0;
  std::vector<CallLatency> latencies;  // the newest kMaxLatencies
};
inline constexpr std::size_t kMaxLatencies = 100'000;

// Every member may be called from any thread.
class Kubelet {
 public:
  // Creates the directories, removes sockets from device-plugins/ as the real kubelet does at its start, and
  // serves.
  static Result<std::unique_ptr<Kubelet>> start_kubelet(KubeletSettings settings);
  ~Kubelet();
  Kubelet(const Kubelet&) = delete;

  // Admits a Pod: for each container and resource, NUMA hints, GetPreferredAllocation, Allocate, checkpoint.
  // A Pod that is admitted already gets the same grant again. All or nothing. Errors, with the
  // kubelet's texts: kFailedPrecondition "UnexpectedAdmissionError: Allocate failed due to requested number
  // of devices unavailable for nvidia.com/gpu. Requested: 9, Available: 8, which is unexpected",
  // "TopologyAffinityError: …"; kUnavailable while stopped.
  Result<PodGrant> admit_pod(PodRequest pod);
  // Removes a Pod. Its devices are free at the next admission or List. kNotFound for an unknown Pod.
  Status remove_pod(const std::string& uid);

  // A claim that its drivers have prepared, and that they have unprepared. Both are kept over restarts.
  void add_prepared_claim(PreparedClaim claim);
  void remove_prepared_claim(const std::string& name_space, const std::string& name);

  // Stops as a killed process does: connections break, socket files stay.
  void stop_kubelet();
  // Starts again: removes the sockets, listens, reads the checkpoint.
  Status resume_kubelet();
  Status restart_kubelet() {
    stop_kubelet();
    return resume_kubelet();
  }

  void set_register_behavior(RegisterBehavior mood);
  void set_topology_policy(TopologyPolicy policy);

  KubeletState kubelet_state() const;
  // True as soon as `done(state)` is; false after `timeout`. `done` runs after each change, under the
  // kubelet's lock.
  bool wait_for(const std::function<bool(const KubeletState&)>& done,
                std::chrono::milliseconds timeout) const;
  // True once `count` healthy devices of `resource` are reported by a connected plugin.
  bool wait_for_allocatable(const std::string& resource, std::size_t count,
                            std::chrono::milliseconds timeout) const;
  void clear_latencies();

  std::string plugin_dir() const;            // <dir>/device-plugins
  std::string kubelet_socket() const;        // <dir>/device-plugins/kubelet.sock
  std::string pod_resources_socket() const;  // <dir>/pod-resources/kubelet.sock

  struct Impl;

 private:
  explicit Kubelet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulet::sim
