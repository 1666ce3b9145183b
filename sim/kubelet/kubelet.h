// A kubelet's device side, embedded: it speaks the real protocol as the real one does (Registration, dialling back,
// ListAndWatch, GetPreferredAllocation and Allocate at admission, NUMA hints, checkpoint, PodResources), for the demo,
// tests and benchmarks. What it leaves out: containers, init containers, DRA, memory and CPU managers.
//
// A plugin cannot tell it from the real one by what it sees on its sockets. Differences in the files: the
// checkpoint's checksum is FNV-1a of its data's JSON (the real one hashes a Go dump of the struct), so the two cannot
// read each other's checkpoint.
// Source: Kubernetes 1.36, pkg/kubelet/cm/devicemanager and topologymanager.
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

// How Register is answered. kLate: after `late_by`. kNever: not before the caller gives up.
enum class RegisterMood { kAnswers, kRefuses, kLate, kNever };

struct KubeletSettings {
  std::string dir;  // stands for /var/lib/kubelet: device-plugins/ and pod-resources/ are made below it
  TopologyPolicy topology = TopologyPolicy::kNone;
  std::chrono::milliseconds late_by{300};
  // Between bind and listen of its sockets: a client that connects then is refused, as with the real one.
  std::chrono::milliseconds listen_delay{0};
  // A Pod's worth of padding in each PodResources answer, to test large ones.
  std::size_t pod_resources_padding_bytes = 0;
};

struct ContainerRequest {
  std::string name;
  std::map<std::string, unsigned> resources;  // resource name → count
};
struct PodRequest {
  std::string name_space = "default";
  std::string name;
  std::string uid;  // empty: made from namespace and name
  std::vector<ContainerRequest> containers;
};

// What one container got: the union of its resources' Allocate answers.
struct ContainerGrant {
  std::string name;
  std::map<std::string, std::vector<std::string>> devices;  // resource → ids: by NUMA node, then as they were taken
  std::map<std::string, std::string> envs, annotations;
  struct Mount { std::string host_path, container_path; bool read_only = false; };
  struct Device { std::string host_path, container_path, permissions; };
  std::vector<Mount> mounts;
  std::vector<Device> device_specs;
  std::vector<std::string> cdi_devices;
};
struct PodGrant {
  std::string uid;
  std::vector<ContainerGrant> containers;
};

// One device as its plugin last said it.
struct KubeletDevice {
  bool healthy = false;
  std::set<int> numa_nodes;
};

// What the kubelet knows of one resource.
struct KubeletResource {
  bool connected = false;        // its plugin's ListAndWatch is open
  std::string endpoint;
  bool preferred_allocation_available = false;
  std::map<std::string, KubeletDevice> devices;
  std::uint64_t registrations = 0;  // accepted, since the kubelet was made
  std::uint64_t lists = 0;          // ListAndWatch messages received
  std::size_t capacity() const { return devices.size(); }
  std::size_t allocatable() const;  // healthy ones
};

// One call between kubelet and plugin, as the kubelet timed it.
struct CallLatency {
  std::string call;  // "GetDevicePluginOptions", "GetPreferredAllocation", "Allocate", "Register" (from its arrival
                     // to its answer), "FirstList" (from Register's answer to the first list)
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
  std::vector<CallLatency> latencies;      // the newest kMaxLatencies
};
inline constexpr std::size_t kMaxLatencies = 100'000;

// Every member may be called from any thread.
class Kubelet {
 public:
  // Makes the folders, clears sockets from device-plugins/ as the real one does at its start, and serves.
  static Result<std::unique_ptr<Kubelet>> start(KubeletSettings settings);
  ~Kubelet();
  Kubelet(const Kubelet&) = delete;

  // Admits a Pod: for each container and resource, NUMA hints, GetPreferredAllocation, Allocate, checkpoint. A Pod
  // that is admitted already gets the same grant again. All or nothing.
  // Errors, each as the kubelet words them: kFailedPrecondition "UnexpectedAdmissionError: Allocate failed due to
  // requested number of devices unavailable for nvidia.com/gpu. Requested: 9, Available: 8, which is unexpected",
  // "TopologyAffinityError: …"; kUnavailable while stopped.
  Result<PodGrant> admit(PodRequest pod);
  // Ends a Pod: its devices are free again. kNotFound for one that is not there.
  Status remove(const std::string& uid);

  // Ends as a killed process does: connections break, sockets stay as files; nothing answers.
  void stop();
  // Starts again: clears the folder's sockets, listens, reads the checkpoint.
  Status start_again();
  Status restart() {
    stop();
    return start_again();
  }

  void set_register_mood(RegisterMood mood);
  void set_topology_policy(TopologyPolicy policy);

  KubeletState state() const;
  // True as soon as `done(state)` is; false after `timeout`. `done` is asked after each change, under the kubelet's
  // lock.
  bool wait_for(const std::function<bool(const KubeletState&)>& done, std::chrono::milliseconds timeout) const;
  // True once `count` healthy devices of `resource` are offered by a connected plugin.
  bool wait_for_allocatable(const std::string& resource, std::size_t count, std::chrono::milliseconds timeout) const;
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
