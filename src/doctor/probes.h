// The parts of gather.h. Those of files take values and return values, as each runs on a thread that may be
// given up; the others run on the loop. For this room's .cpp files.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/loop.h"
#include "doctor/gather.h"
#include "nvml/worker.h"

namespace gpulet::doctor {

inline constexpr std::string_view kOurs =
    "nvidia.com/";  // whose resources, CDI kinds and labels are asked about

// Where a node's trees are, as this process sees them.
struct Trees {
  std::string host, driver, proc, sys, dev;
};
Trees trees_of(const Places& places);
std::string below(const std::string& root, const std::string& path);

// host_files.cpp
Result<Bus> look_at_bus(const Trees& trees);
Installed look_at_driver_files(const Trees& trees);
Result<Nodes> look_at_nodes(const Trees& trees);
Result<Programs> look_at_programs(const Trees& trees);

// engine_files.cpp
Result<Engines> look_at_engines(const Trees& trees, bool inside,
                                const std::vector<runtimes::CommandLine>& kubelets);
Result<CdiSpecs> look_at_cdi(const Trees& trees, const std::string& agent_folder, bool host_files_seen);
// Name and pipe directory of each daemon that was started; none where there is no such root.
Result<std::vector<std::pair<std::string, std::string>>> mps_pipes(const std::string& root);
// `settings`: files of container engines, as the host calls them.
std::vector<ArchiveFile> raw_files(const Trees& trees, const std::string& device_plugins,
                                   const std::set<std::string>& settings);

// Runs things within their limits: on the loop, or on threads of their own.
class Prober {
 public:
  Prober() : worker_(loop_) {}
  Prober(const Prober&) = delete;

  EpollLoop& loop() { return loop_; }

  template <class T>
  Result<T> on_thread(const std::string& what, std::function<Result<T>()> work) {
    std::optional<Result<T>> answer;
    worker_.run<T>({what, what, kProbeLimit}, std::move(work), [&](Result<T> result) {
      answer.emplace(std::move(result));
      loop_.stop();
    });
    loop_.run();
    return std::move(*answer);
  }

  // `start` begins something that ends by calling what it is given, once, on the loop.
  template <class T>
  Result<T> on_loop(const std::string& what, Duration limit,
                    const std::function<void(std::function<void(Result<T>)>)>& start) {
    const auto answer = std::make_shared<std::optional<Result<T>>>();
    const auto finish = [this, answer](Result<T> result) {
      if (*answer) return;
      answer->emplace(std::move(result));
      loop_.stop();
    };
    const auto over = loop_.after(
        limit, [finish, what] { finish(fail(Code::kDeadlineExceeded, what + " did not answer in time")); });
    start(finish);
    loop_.run();
    return std::move(**answer);
  }

 private:
  EpollLoop loop_;
  nvml::Worker worker_;
};

// driver_probe.cpp
Result<Driver> ask_driver(Prober& prober, const std::string& driver_root,
                          const std::vector<std::string>& sys_roots);
// agent_probe.cpp. What it served is added to `files`.
Result<Agent> ask_agent(Prober& prober, const Places& places, std::string& config,
                        std::vector<ArchiveFile>& files);
Result<Agent> parse_agent(const std::string& document, std::string& config);
Result<Settings> settings_of(const Result<Agent>& agent, const std::string& config, const Places& places);
// kubelet_probe.cpp
Kubelet ask_kubelet(Prober& prober, const Places& places, const Trees& trees);
Result<std::vector<MpsDaemon>> ask_mps(Prober& prober, const Trees& trees, const std::string& root);
// cluster_probe.cpp
Result<Cluster> ask_cluster(Prober& prober, const Places& places);
// explain_probe.cpp. The first kMaxExplained of those that wait for a node, within kExplainLimit.
void explain(Prober& prober, const Places& places, std::vector<PendingPod>& pods);
Result<Explained> parse_explanation(const std::string& document, const std::string& node);

}  // namespace gpulet::doctor
