// The metrics of a node, from samples to pages: keeps what is added up, forgets what is gone. Pure: it is
// told all that it knows, and of the time.
#pragma once

#include <optional>
#include <string>

#include "inventory/snapshot.h"
#include "metrics/accounts.h"
#include "metrics/attribution.h"
#include "metrics/counters.h"
#include "metrics/dcgm_page.h"
#include "metrics/exposition.h"
#include "metrics/sample.h"
#include "metrics/usage.h"
#include "metrics/windows.h"

namespace gpulet::metrics {

class Meter {
 public:
  // What is shown and how. What is added up stays.
  void use(Counters counters, PageOptions options, WindowSizes windows = {});

  void xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code, std::string text,
           Time now) {
    windows_.xid(gpu, gpu_instance, code, std::move(text), now);
  }

  // Who holds what, as of now; it stays until the next is told.
  struct Pods {
    Holders holders;
    PodOfProcess processes;
    std::map<PodName, PodFacts> facts;
  };
  // A new sample, its Pods and the snapshot that it was made by.
  void take(inventory::SnapshotPtr snapshot, Sample sample, Pods pods, Time now);

  // Shows nothing any more, until the next sample. What is added up stays.
  void clear();

  // Adds all of it; nothing before the first sample.
  void add_to(Exposition& page) const;

  const Sample& sample() const { return sample_; }
  const Uses& uses() const { return uses_; }
  const PodOfProcess& processes() const { return pods_.processes; }
  const Accounts& accounts() const { return accounts_; }

 private:
  Counters counters_ = default_counters();
  PageOptions options_;
  Windows windows_;
  Accounts accounts_;
  EnergyCounters energy_;
  inventory::SnapshotPtr snapshot_;
  Sample sample_;
  Pods pods_;
  Uses uses_;
  Time when_{};
};

}  // namespace gpulet::metrics
