// The labels of the Pods that hold devices, from the API server: each Pod is asked for once when it is first
// seen, and again after kPodLabelsFresh, as labels hardly change in a Pod's life. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cluster/reader.h"
#include "kubelet/pod_resources.h"
#include "metrics/attribution.h"

namespace gpulet::agent {

// With 30 Pods a node, 5,000 nodes ask an API server 42 times a second.
inline constexpr Duration kPodLabelsFresh = std::chrono::hours(1);

class PodLabels {
 public:
  using Labels = std::map<metrics::PodName, std::map<std::string, std::string>>;
  // `told`: the labels of all that are known, whenever they differ. From the loop.
  PodLabels(Loop& loop, cluster::Reader& reader, std::function<void(const Labels&)> told);

  // Who holds devices now. Those that are unknown are asked for, those that are gone forgotten. What could
  // not be had is asked for again the next time, and said once.
  void on_containers(const std::vector<kubelet::ContainerDevices>& containers);

 private:
  struct Known {
    std::map<std::string, std::string> labels;
    std::optional<Time> read;
    bool reading = false;
  };
  void ask(const metrics::PodName& pod);
  void tell();

  Loop& loop_;
  cluster::Reader& reader_;
  std::function<void(const Labels&)> told_;
  std::map<metrics::PodName, Known> pods_;
  Labels labels_;     // as told
  std::string said_;  // the trouble
};

}  // namespace gpulet::agent
