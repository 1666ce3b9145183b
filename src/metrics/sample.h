// One sample of a node's GPUs as plain values: what was asked of the driver and what it said.
//
// What this GPU or driver does not have is not in it. A GPU that did not answer is in it with the reason and
// nothing else: the others are whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/strong.h"
#include "metrics/fields.h"

namespace gpulet::metrics {

// Numbers in the units of the field's help; texts of labels.
using Value = std::variant<std::uint64_t, double, std::string>;
using Values = std::map<Field, Value>;

// What a field's number is; nullopt for a text, and for a field that was not read.
std::optional<double> number(const Values& values, Field field);

struct ProcessSample {
  unsigned pid = 0;             // as the host counts
  std::optional<Bytes> memory;  // nullopt: the driver does not say
  double sm = 0;                // percent of the device's time since the sample before
  std::string name{};           // of its program, as the kernel has it (15 bytes at most); "": not known
  friend bool operator==(const ProcessSample&, const ProcessSample&) = default;
};

// What happened within Sample::windows.
struct EventCounts {
  std::map<std::uint64_t, std::uint64_t> xids;        // by XID
  std::map<std::string, std::uint64_t> clock_events;  // by DCGM's name: samples in which it was so
  friend bool operator==(const EventCounts&, const EventCounts&) = default;
};
struct LastXid {
  std::uint64_t code = 0;  // 0: none since the start
  std::string text;        // "No Error" for none
  friend bool operator==(const LastXid&, const LastXid&) = default;
};

// A MIG device. What is measured of it is its GPU instance's, but for its processes.
struct MigDeviceSample {
  DeviceUuid uuid;
  unsigned compute_instance = 0;
  std::vector<ProcessSample> processes;
};
// The profile of a MIG device's GPU instance: "2g.20gb" of "1c.2g.20gb".
std::string instance_profile(const std::string& profile);
struct InstanceSample {
  unsigned id = 0;
  std::string profile;  // "1g.10gb"
  Values values;        // of fields that each instance has for itself
  LastXid xid;
  EventCounts counts;
  std::vector<MigDeviceSample> devices;  // by compute instance
};
struct GpuSample {
  unsigned index = 0;
  DeviceUuid uuid;
  std::string pci_bus_id;  // "00000000:1B:00.0"
  std::string model;
  std::optional<Error> failed;
  bool mig = false;  // its mode
  Values values;
  LastXid xid;
  EventCounts counts;
  std::map<unsigned, std::string> peers;  // by index, DCGM's word: "OK", "NotSupported", …
  std::vector<ProcessSample> processes;   // by pid; of a GPU in MIG mode its devices have them
  bool times = true;                      // whether the driver told how busy each process is
  std::vector<InstanceSample> instances;  // by id
};
// How long each of EventCounts counts back.
struct WindowSizes {
  std::chrono::milliseconds xids{300'000}, clock_events{300'000};
};
struct Sample {
  WindowSizes windows;
  std::vector<GpuSample> gpus;  // by index
};

}  // namespace gpulet::metrics
