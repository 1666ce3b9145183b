// Static SM partitions of a simulated MPS control daemon: the commands sm_partition and lspart. A GPU's SMs
// are given out in chunks, and a client names a partition or gets no context. Source: NVIDIA, "Legacy MPS v2
// Interface"; output in users' reports (driver 590).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpulet::sim::mps {

// SMs of one chunk: 4 of Ampere and Ada, 8 from Hopper on; 0: the architecture has no partitions.
unsigned sms_of_chunk(int compute_major);

struct PartitionableDevice {
  std::string uuid;
  unsigned sms = 0, sms_of_chunk = 0;
};

class SmPartitions {
 public:
  explicit SmPartitions(std::vector<PartitionableDevice> devices);

  // "sm_partition add GPU CHUNKS": "Partition GPU/ID created". An id is the set of its chunks, so that the
  // same commands in the same order give the same ids.
  std::string add_partition(const std::string& uuid, const std::string& chunks);
  // "sm_partition rm GPU ID": nothing, or why not: it has clients.
  std::string remove_partition(const std::string& uuid, const std::string& id);
  // "lspart": a row for each GPU and partition. GPUs are shortened.
  std::string list_partitions() const;

  // A client of "GPU/ID": its number of SMs. nullopt: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION.
  std::optional<unsigned> add_client(const std::string& partition);
  void remove_client(const std::string& partition);

 private:
  struct Partition {
    std::vector<unsigned> chunks;
    unsigned clients = 0;
  };
  struct Device {
    PartitionableDevice facts;
    std::vector<bool> is_used{};  // by chunk
    std::map<std::string, Partition> partitions{};
  };
  Device* find_partitionable(const std::string& uuid);
  Partition* find_partition(const std::string& partition);

  std::vector<Device> devices_;
};

}  // namespace gpulet::sim::mps
