// Adds the profiling fields (DCGM_FI_PROF_*) of GPUs before Hopper to the driver's samples: NVML has none
// there, but a running nv-hostengine does. `dcgmi dmon` of the driver root asks it and prints a row for each
// GPU and interval; it runs only while such a GPU is sampled and such a field is wanted.
//
// A program that ends, or prints nothing for long, is started again with a backoff; meanwhile those fields
// are absent, and everything else is as without. Loop's thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/observe/metrics_collector.h"
#include "base/process.h"
#include "metrics/host_engine.h"

namespace gpulet::agent {

inline constexpr BackoffLimits kHostEngineRetry = {std::chrono::seconds(5), std::chrono::minutes(5)};
// Beyond three intervals: without a row for so long, the program is killed.
inline constexpr Duration kHostEngineSilence = std::chrono::seconds(30);
inline constexpr std::size_t kMaxDmonLine = 4096;

struct HostEngineSettings {
  std::string address;      // dcgmi's --host: "localhost:5555", "unix:///run/dcgm.sock"; empty: none is asked
  std::string driver_root;  // where dcgmi is; find_driver_program() says where else
  Duration interval{};      // of its values
  friend bool operator==(const HostEngineSettings&, const HostEngineSettings&) = default;
};

class HostEngineSampler : public Sampler {
 public:
  HostEngineSampler(Loop& loop, Sampler& driver) : loop_(loop), driver_(driver) {}

  void use_host_engine(HostEngineSettings settings);
  // Whether it has values. nullopt: it is not asked, as no GPU or field needs it.
  std::optional<bool> is_connected() const;

  // Sampler:
  void set_fields(std::set<metrics::Field> fields) override;
  void sample_gpu(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) override;

 private:
  struct Row {
    metrics::Values values;
    Time at{};
  };
  bool is_needed() const { return !settings_.address.empty() && !fields_.empty() && has_old_gpu_; }
  void restart();
  void start();
  void stop();
  void read_output();
  void use_line(std::string_view line);
  void on_end(const std::string& why);
  void watch_silence();
  void add_values(const inventory::Gpu& gpu, metrics::GpuSample& sample) const;

  Loop& loop_;
  Sampler& driver_;
  HostEngineSettings settings_;
  std::vector<metrics::Field> fields_;
  bool has_old_gpu_ = false;  // a GPU before Hopper was sampled
  std::map<inventory::PciAddress, Row> rows_;
  std::string pending_, last_message_;  // the begun line; what the program printed beside rows
  std::string said_;                    // the problem that was logged
  std::unique_ptr<Process> process_;
  FileDescriptor output_;
  Subscription reading_, retry_, silence_;
  std::optional<Backoff> backoff_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
