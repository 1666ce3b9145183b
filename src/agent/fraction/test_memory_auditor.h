// A memory auditor on a node whose kubelet, API server, driver and processes a test sets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/fraction/memory_auditor.h"
#include "agent/fraction/test_memory_node.h"
#include "agent/remediation/test_faults.h"
#include "base/loop.h"

namespace gpulet::agent {

inline const std::string kId = std::string(64, 'a'), kOtherId = std::string(64, 'b'),
                         kNewId = std::string(64, 'c');
inline const DeviceUuid kAuditedGpu("GPU-0");

inline inventory::SnapshotPtr audited_node() {
  return std::make_shared<const inventory::Snapshot>(make_memory_node(2));
}

class AuditTest : public ::testing::Test {
 protected:
  AuditTest() : reader(loop) {
    MemoryAuditorPorts ports{
        .loop = loop,
        .ledger = {.loop = loop,
                   .holders =
                       [this](auto done) {
                         ++lists;
                         loop.post([this, done = std::move(done)] {
                           if (kubelet_error) return done(fail(*kubelet_error));
                           done(holders);
                         });
                       },
                   .reader = reader,
                   .on_invalid_request = {},
                   .changed = {},
                   .claimed_memory =
                       [this](const auto& name_space, auto claims) {
                         return dra::claimed_memory(claims_of_node, name_space, claims);
                       }},
        .read_memory =
            [this](std::vector<GpuMemoryQuestion> questions, auto done) {
              calls.push_back(questions.size());
              loop.post([this, questions = std::move(questions), done = std::move(done)] {
                done(answer_questions(questions));
              });
            },
        .cgroups = [this](unsigned pid) { return cgroups[pid]; },
        .kill = [this](unsigned pid, const metrics::PodCgroup& expected) -> Status {
          if (kill_error) return fail(*kill_error);
          killed.emplace_back(pid, expected.container);
          return {};
        },
        .evict = [this](const PodRef& pod,
                        auto on_update) { return evictions.start_eviction(pod.name, std::move(on_update)); },
        .notify = [this](const EvictionEvent& event) { events.push_back(event); },
        .is_shared_by_mps = [this](const LedgerEntry& entry,
                                   const DeviceUuid&) { return entry.resource.str() == mps_resource; },
        .limit_means = [this](const LedgerEntry&, const DeviceUuid&) { return means; },
        .end_clients =
            [this](const DeviceUuid&, const std::vector<unsigned>& pids, std::function<void()> done) {
              if (!has_own_mps) return false;
              ended.push_back(pids);
              if (!is_mps_hanging) loop.post(std::move(done));
              return true;
            },
        .watch_memory = [this](auto known, unsigned intervals,
                               auto on_end) { return watch(known, intervals, on_end); },
    };
    auditor.emplace(std::move(ports), 1);
  }

  Result<GpuMemoryReadings> answer_questions(const std::vector<GpuMemoryQuestion>& questions) {
    GpuMemoryReadings readings;
    for (const auto& [gpu, known] : questions) {
      if (hanging.contains(gpu)) return fail(Code::kDeadlineExceeded, "the driver has not answered");
      ++readings_of[gpu];
      const auto& use = uses[gpu];
      if (driver_error) {
        readings.push_back(fail(*driver_error));
      } else if (known && use.used == known) {
        readings.push_back(GpuMemoryReading{use.used, std::nullopt});
      } else {
        ++process_lists;
        readings.push_back(GpuMemoryReading{use.used, use.processes});
      }
    }
    return readings;
  }

  // As the driver's thread does it, where a test has it.
  Subscription watch(const std::vector<GpuMemoryQuestion>& known, unsigned intervals,
                     const MemoryAuditorPorts::WatchEnded& on_end) {
    if (!has_watch) return {};
    ++watches;
    if (is_watch_hanging) return Subscription([] {});
    auto timer = std::make_shared<Subscription>();
    watch_once(timer, known, intervals, 1, on_end);
    return Subscription([timer] { timer->reset(); });
  }
  void watch_once(const std::shared_ptr<Subscription>& timer, const std::vector<GpuMemoryQuestion>& known,
                  unsigned intervals, unsigned passed, const MemoryAuditorPorts::WatchEnded& on_end) {
    *timer = loop.after(kAuditInterval, [=, this, weak = std::weak_ptr(timer)] {
      const bool is_known =
          std::ranges::all_of(known, [&](const auto& one) { return uses[one.gpu].used == one.known; });
      if (watch_error) return on_end(fail(*watch_error));
      if (passed == intervals || !is_known) return on_end(passed);
      watch_once(weak.lock(), known, intervals, passed + 1, on_end);
    });
  }

  // A Pod with one container, main, that requests memory of each of its shares.
  void add_pod(const std::string& name, const std::string& memory, std::vector<std::string> ids,
               const std::string& container_id = kId) {
    holders.push_back(container_with_devices(name, std::move(ids)));
    k8s::Annotations annotations;
    if (!memory.empty()) annotations["gpulet.io/gpu-memory"] = memory;
    reader.add_pod(name, std::move(annotations));
    reader.pods["default/" + name].containers = {
        {.name = "main", .limits = {{"nvidia.com/gpu", "1"}}, .id = "containerd://" + container_id}};
  }
  void add_process(unsigned pid, const std::string& pod, std::uint64_t mib, const std::string& id = kId) {
    uses[kAuditedGpu].processes.push_back({pid, mebibytes(mib)});
    cgroups[pid] = {{"uid-" + pod, id}};
  }
  void start(config::ExceededAction action) {
    auditor->use_snapshot(audited_node());
    auditor->apply_action(action);
    loop.run_ready();
  }
  std::vector<std::string> reasons() const {
    std::vector<std::string> all;
    for (const auto& event : events) all.push_back(event.reason);
    return all;
  }

  ManualLoop loop;
  FakeReader reader;
  FakeEvictions evictions;
  std::vector<ContainerDevices> holders;
  struct Use {
    std::optional<Bytes> used{};
    std::vector<ProcessMemory> processes{};
  };
  std::map<DeviceUuid, Use> uses;
  std::map<unsigned, std::vector<metrics::PodCgroup>> cgroups;
  std::optional<Error> kubelet_error, driver_error, kill_error;
  fraction::LimitMeans means{.no_driver_limit = "no driver", .ends_excess = true};
  std::map<std::string, dra::ClaimRecord> claims_of_node;
  std::string mps_resource;
  bool has_own_mps = false, is_mps_hanging = false;
  bool has_watch = false, is_watch_hanging = false;
  std::optional<Error> watch_error;
  std::size_t watches = 0;
  std::vector<std::vector<unsigned>> ended;  // the work of these processes
  std::size_t lists = 0, process_lists = 0;
  std::vector<std::size_t> calls;  // GPUs in each
  std::map<DeviceUuid, std::size_t> readings_of;
  std::set<DeviceUuid> hanging;
  std::vector<std::pair<unsigned, std::string>> killed;
  std::vector<EvictionEvent> events;
  std::optional<MemoryAuditor> auditor;
};

using Reasons = std::vector<std::string>;
using Killed = std::vector<std::pair<unsigned, std::string>>;

}  // namespace gpulet::agent
