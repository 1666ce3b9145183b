// For tests: simulated machines as Snapshots, cut up or not, configs in every mode, and goldens.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "config/load.h"
#include "inventory/snapshot_reader.h"
#include "labels/labels.h"
#include "nvml/session.h"
#include "nvml/test_sim_root.h"
#include "partition/rules.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::labels::test {

// How the machine's GPUs are cut up where they can be.
enum class Cut {
  kNone,
  kAlike,   // every GPU into instances of the smallest profile
  kUnlike,  // the first GPU stays whole, the next ones have one of each profile that still fits
};

inline void cut_up(sim::Machine& machine, Cut cut) {
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    auto& gpu = machine.gpus[i];
    if (gpu.mig.capable == 0 || cut == Cut::kNone || (cut == Cut::kUnlike && i == 0)) continue;
    gpu.mig.mode_needs_reset = 0;
    ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
    const auto instance = [&](std::uint32_t profile) {
      sim::GpuInstance* made = nullptr;
      if (sim::create_gpu_instance(gpu, profile, std::nullopt, &made) != sim::MigOutcome::kOk) return false;
      sim::ComputeInstance* inner = nullptr;
      const auto& shape = gpu.mig.profiles[made->profile];
      const auto whole = shape.compute_profiles[shape.compute_profile_count - 1].id;
      EXPECT_EQ(sim::create_compute_instance(gpu, *made, whole, std::nullopt, &inner), sim::MigOutcome::kOk);
      return true;
    };
    const auto* smallest = &gpu.mig.profiles[0];
    if (cut == Cut::kAlike) {
      while (instance(smallest->id)) {
      }
    }
    for (std::uint32_t p = 0; cut == Cut::kUnlike && p < gpu.mig.profile_count; ++p) {
      instance(gpu.mig.profiles[p].id);
    }
  }
}

// As the driver says it; the class, which sysfs would tell, is that of a board without a screen.
inline inventory::Snapshot read_machine(const std::string& name, Cut cut = Cut::kNone) {
  auto machine = sim::load_machine(name);
  EXPECT_TRUE(machine) << machine.error().full_message();
  cut_up(**machine, cut);
  const nvml::SimRoot root(**machine);
  const auto session = nvml::Session::open_session(root.sim_root());
  EXPECT_TRUE(session) << session.error().full_message();
  inventory::Snapshot snapshot;
  const auto found = inventory::read_driver_summary(**session);
  EXPECT_TRUE(found);
  snapshot.driver = found->driver;
  for (unsigned i = 0; i < found->gpu_count; ++i) {
    snapshot.gpus.push_back(inventory::read_gpu(**session, i, {root.sim_root()}));
    EXPECT_FALSE(snapshot.gpus.back().unreadable) << snapshot.gpus.back().unreadable->full_message();
    snapshot.gpus.back().pci_class = 0x030200;
  }
  snapshot.pcie.resize(snapshot.gpus.size() * snapshot.gpus.size());
  return snapshot;
}

inline config::Config config_of(const std::string& yaml) {
  config::Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = yaml;
  auto loaded = config::load(sources);
  EXPECT_TRUE(loaded) << loaded.error().full_message();
  return loaded ? std::move(loaded->config) : config::Config();
}

inline Labels labels_with(const inventory::Snapshot& snapshot, const config::Config& config,
                          const std::optional<std::string>& machine = "DGX H100\n") {
  const std::map<std::string, std::string> none;
  auto marked = snapshot;
  partition::mark_excluded_gpus(marked, config, none);
  return build_labels({marked, config, none, machine, std::nullopt});
}

inline Labels labels_with(const inventory::Snapshot& snapshot, const std::string& yaml) {
  return labels_with(snapshot, config_of(yaml));
}

// The value, or nothing.
inline std::string value(const Labels& labels, const std::string& key) {
  const auto found = labels.find(key);
  return found == labels.end() ? "(absent)" : found->second.value;
}

inline void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/labels/" + name;
  if (std::getenv("UPDATE_GOLDEN")) {
    ASSERT_TRUE(write_file_atomic(path, text));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().full_message() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text, *golden) << name << " (UPDATE_GOLDEN=1 writes it)";
}

}  // namespace gpulet::labels::test
