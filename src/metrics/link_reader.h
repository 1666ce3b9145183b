// Reads the NVLinks of a GPU from the driver, for GpuReader: samples of each link, and DCGM's fields that are
// sums over the links.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "inventory/snapshot.h"
#include "metrics/fields.h"
#include "nvml/nvlinks.h"
#include "nvml/session.h"

namespace gpulet::metrics {

// NVLink traffic as DCGM has it: thousands of KiB per second.
std::uint64_t dcgm_bandwidth(std::uint64_t kib, std::chrono::nanoseconds time);

// The other end of a link, as LinkSample::remote.
std::string describe_remote(const inventory::NvLink& link, const inventory::Snapshot& snapshot);

// Of one GPU and one Session. Keeps what rates need, and the other end of a link that goes down.
class LinkReader {
 public:
  explicit LinkReader(const std::set<Field>& wanted);

  struct Reading {
    std::vector<LinkSample> links;  // by index
    Values sums;                    // of fields()
  };
  // Which links the GPU has is asked once; then a reading is one call. Nothing, without a call, if no field
  // is wanted or the GPU has no links. Errors: those of the Session.
  Result<Reading> sample_links(const nvml::Session& session, nvml::Device device,
                               const inventory::Snapshot& snapshot, const inventory::Gpu& gpu,
                               std::chrono::nanoseconds now);

 private:
  struct Traffic {
    std::uint64_t kib = 0;
    std::chrono::nanoseconds when{};
  };
  struct KnownLink {
    unsigned index = 0;
    std::string remote{};
    std::optional<Traffic> traffic{};
  };
  void fill_sample(KnownLink& known, const nvml::NvLinkValues& values, std::chrono::nanoseconds now,
                   LinkSample& sample) const;

  bool wants_own_ = false;  // gpulet's metrics of links
  std::set<Field> fields_;  // of link_fields()
  std::set<Field> sums_;
  std::set<nvml::LinkCounter> counters_;
  std::optional<std::vector<KnownLink>> known_;
};

}  // namespace gpulet::metrics
