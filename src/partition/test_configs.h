// Twelve configs of one node and what each offers there: for every test that goes from any config to any
// other.
#pragma once

#include <string>
#include <vector>

#include "inventory/snapshot.h"
#include "partition/test_node.h"

namespace gpulet::partition::test {

// What a config makes of the node: a resource, how its devices are shared, and which devices they are. Two
// that are equal are the same resource, to the byte; two that differ in anything are not.
struct ExpectedResource {
  std::string name;     // below nvidia.com/
  std::size_t devices;  // as the kubelet counts them
  std::string how;      // "whole", "time-slicing 4", "mps 4", "mps 60", "mig"
  std::string of;       // GPUs, or MIG devices as "gpu:index"
  friend bool operator==(const ExpectedResource&, const ExpectedResource&) = default;
};

struct TestConfig {
  std::string name;
  std::string yaml;                         // a whole config file
  std::vector<ExpectedResource> resources;  // by name
};

// Eight H100, of which GPU 6 is cut into seven 1g.10gb and GPU 7 as all-balanced: 3g.40gb, 2g.20gb, 1g.10gb,
// 1g.10gb.
inline inventory::Snapshot config_node() {
  const std::string model = "NVIDIA H100 80GB HBM3";
  std::vector<inventory::Gpu> gpus;
  for (unsigned i = 0; i < 6; ++i) gpus.push_back(gpu(i, model));
  gpus.push_back(cut_as(6, std::vector<std::string>(7, "1g.10gb"), model));
  gpus.push_back(cut_as(7, {"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"}, model));
  return node(std::move(gpus));
}

inline const std::vector<TestConfig>& test_configs() {
  const std::string small = "6:0-6 7:2-3";
  const ExpectedResource whole{"gpu", 6, "whole", "0-5"};
  const ExpectedResource mig1{"mig-1g.10gb", 9, "mig", small};
  const ExpectedResource mig2{"mig-2g.20gb", 1, "mig", "7:1"};
  const ExpectedResource mig3{"mig-3g.40gb", 1, "mig", "7:0"};
  const ExpectedResource three{"gpu", 3, "whole", "0-2"};
  const ExpectedResource sliced{"gpu.shared", 8, "time-slicing 4", "3-4"};
  const std::string rules =
      "gpulet:\n  partition:\n"
      "  - {devices: [0-2], whole: {}}\n"
      "  - {devices: [3, 4], timeSlicing: {replicas: 4}}\n"
      "  - {devices: [6], mig: {devices: {1g.10gb: 7}}}\n"
      "  - {devices: [7], mig: {layout: all-balanced}}\n"
      "  - devices: [5]\n    mps: ";
  static const std::vector<TestConfig> all = {
      {"plain", "version: v1\n", {{"gpu", 8, "whole", "0-7"}}},
      {"replicas-4",
       "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n",
       {{"gpu", 32, "time-slicing 4", "0-7"}}},
      {"replicas-8",
       "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 8}]}}\n",
       {{"gpu", 64, "time-slicing 8", "0-7"}}},
      {"renamed",
       "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}\n",
       {{"gpu.shared", 32, "time-slicing 4", "0-7"}}},
      {"some",
       "sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.half, replicas: 2, devices: [0, 1]}]}}\n",
       {{"gpu", 6, "whole", "2-7"}, {"gpu.half", 4, "time-slicing 2", "0-1"}}},
      {"mps",
       "flags: {mpsRoot: /run/nvidia/mps}\n"
       "sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 4, devices: [0, 1, 2, 3, 4, "
       "5]}]}}\n",
       {{"gpu", 2, "whole", "6-7"}, {"gpu.shared", 24, "mps 4", "0-5"}}},
      {"single", "flags: {migStrategy: single}\n", {whole}},
      {"mixed", "flags: {migStrategy: mixed}\n", {whole, mig1, mig2, mig3}},
      {"mixed-sliced",
       "flags: {migStrategy: mixed}\n"
       "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: mig-1g.10gb, replicas: 2}]}}\n",
       {whole, {"mig-1g.10gb.shared", 18, "time-slicing 2", small}, mig2, mig3}},
      {"models",
       "flags: {migStrategy: mixed}\n"
       "resources: {gpus: [{pattern: \"*H100*\", name: h100}], mig: [{pattern: 1g.*, name: mig-small}]}\n",
       {{"h100", 6, "whole", "0-5"}, mig2, mig3, {"mig-small", 9, "mig", small}}},
      {"rules",
       rules + "{shares: [60, 40]}\n",
       {three, {"gpu.mps-40", 1, "mps 40", "5"}, {"gpu.mps-60", 1, "mps 60", "5"}, sliced, mig1, mig2, mig3}},
      {"rules-moved",
       rules + "{replicas: 4, name: gpu.quarter}\n",
       {three, {"gpu.quarter", 4, "mps 4", "5"}, sliced, mig1, mig2, mig3}},
  };
  return all;
}

}  // namespace gpulet::partition::test
