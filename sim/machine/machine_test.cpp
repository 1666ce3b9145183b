#include "sim/machine/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

std::unique_ptr<Machine> load_built_in(const std::string& name) {
  auto machine = load_machine(name);
  EXPECT_TRUE(machine) << machine.error().full_message();
  return machine ? std::move(*machine) : nullptr;
}

std::string machine_error(const std::string& text) {
  const auto machine = parse_machine(text, "own.yaml");
  return machine ? "no error" : machine.error().full_message();
}

std::size_t link_count(const Gpu& gpu) {
  return std::count_if(std::begin(gpu.links), std::end(gpu.links),
                       [](const NvLink& link) { return link.present != 0; });
}

std::size_t links_between(const Machine& machine, std::size_t a, std::size_t b) {
  const PciAddress& there = machine.gpus[b].pci;
  return std::count_if(std::begin(machine.gpus[a].links), std::end(machine.gpus[a].links),
                       [&](const NvLink& link) {
                         return link.present != 0 && link.remote == kRemoteGpu &&
                                link.remote_pci.domain == there.domain && link.remote_pci.bus == there.bus;
                       });
}

class EveryMachine : public testing::TestWithParam<std::string> {};

TEST_P(EveryMachine, IsCompleteAndSymmetric) {
  const auto machine = load_built_in(GetParam());
  ASSERT_NE(machine, nullptr);
  EXPECT_EQ(machine->name, GetParam());
  std::set<std::string> uuids;
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) {
    const Gpu& gpu = machine->gpus[i];
    EXPECT_TRUE(uuids.insert(gpu.uuid).second);
    EXPECT_EQ(gpu.minor, i);
    EXPECT_GE(gpu.memory_total, std::uint64_t{15} << 30);
    EXPECT_EQ(gpu.pci_device_id & 0xffff, 0x10deu);
    EXPECT_GE(gpu.numa_node, 0);
    EXPECT_NE(std::count_if(std::begin(gpu.cpu_affinity), std::end(gpu.cpu_affinity),
                            [](auto word) { return word != 0; }),
              0);
    EXPECT_GT(gpu.power_limit_mw, gpu.power_usage_mw);
    EXPECT_EQ(gpu.topology[i], kTopologyInternal);
    for (std::uint32_t j = 0; j < machine->gpu_count; ++j) {
      EXPECT_EQ(gpu.topology[j], machine->gpus[j].topology[i]) << i << " and " << j;
    }
    for (std::size_t link = 0; link < kMaxLinks; ++link) {
      const NvLink& here = gpu.links[link];
      if (here.present == 0 || here.remote != kRemoteGpu) continue;
      const auto* other = std::find_if(machine->gpus, machine->gpus + machine->gpu_count,
                                       [&](const Gpu& g) { return g.pci.bus == here.remote_pci.bus; });
      ASSERT_NE(other, machine->gpus + machine->gpu_count);
      const NvLink& there = other->links[here.remote_link];
      EXPECT_EQ(there.remote_pci.bus, gpu.pci.bus);
      EXPECT_EQ(there.remote_link, link);
    }
  }
}

TEST_P(EveryMachine, FillsItsMigProfilesToTheirCount) {
  const auto machine = load_built_in(GetParam());
  ASSERT_NE(machine, nullptr);
  Gpu& gpu = machine->gpus[0];
  for (std::uint32_t p = 0; p < gpu.mig.profile_count; ++p) {
    const MigProfile& profile = gpu.mig.profiles[p];
    Gpu empty = gpu;
    empty.mig.current = 1;
    std::uint32_t made = 0;
    GpuInstance* instance = nullptr;
    while (create_gpu_instance(empty, profile.id, std::nullopt, &instance) == MigOutcome::kOk) ++made;
    EXPECT_EQ(made, profile.max_instances) << profile.name;
    EXPECT_LE(profile.memory_mib << 20, gpu.memory_total) << profile.name;
    EXPECT_EQ(profile.compute_profiles[profile.compute_profile_count - 1].slices, profile.slices);
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, EveryMachine,
                         testing::Values("dgx1-v100", "dgx2-v100", "dgx-a100", "dgx-a100-40gb", "hgx-h100",
                                         "hgx-h200", "l40s", "t4", "gb200"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Machines, ListsTheBuiltIn) {
  std::set<std::string> names;
  for (const BuiltIn& machine : built_in_machines()) names.emplace(machine.name);
  EXPECT_EQ(names, (std::set<std::string>{"dgx1-v100", "dgx2-v100", "dgx-a100", "dgx-a100-40gb", "hgx-h100",
                                          "hgx-h200", "l40s", "t4", "gb200"}));
}

struct Golden {
  const char* machine;
  std::uint32_t gpus;
  const char* name;
  std::uint64_t memory_mib;
  std::uint32_t device;
  int major, minor;
  std::size_t links;
  std::int32_t watts;
  std::uint32_t profiles;
};

TEST(Machines, MatchRealMachines) {
  const Golden goldens[] = {
      {"dgx1-v100", 8, "Tesla V100-SXM2-32GB", 32768, 0x1DB510DE, 7, 0, 6, 300, 0},
      {"dgx2-v100", 16, "Tesla V100-SXM3-32GB", 32768, 0x1DB810DE, 7, 0, 6, 350, 0},
      {"dgx-a100", 8, "NVIDIA A100-SXM4-80GB", 81920, 0x20B210DE, 8, 0, 12, 400, 7},
      {"dgx-a100-40gb", 8, "NVIDIA A100-SXM4-40GB", 40960, 0x20B010DE, 8, 0, 12, 400, 7},
      {"hgx-h100", 8, "NVIDIA H100 80GB HBM3", 81559, 0x233010DE, 9, 0, 18, 700, 7},
      {"hgx-h200", 8, "NVIDIA H200", 143771, 0x233510DE, 9, 0, 18, 700, 7},
      {"l40s", 8, "NVIDIA L40S", 46068, 0x26B910DE, 8, 9, 0, 350, 0},
      {"t4", 4, "Tesla T4", 15360, 0x1EB810DE, 7, 5, 0, 70, 0},
      {"gb200", 4, "NVIDIA GB200", 189471, 0x294110DE, 10, 0, 18, 1200, 7},
  };
  for (const Golden& golden : goldens) {
    const auto machine = load_built_in(golden.machine);
    ASSERT_NE(machine, nullptr);
    ASSERT_EQ(machine->gpu_count, golden.gpus) << golden.machine;
    const Gpu& gpu = machine->gpus[golden.gpus - 1];
    EXPECT_STREQ(gpu.name, golden.name);
    EXPECT_EQ(gpu.memory_total, golden.memory_mib << 20);
    EXPECT_EQ(gpu.pci_device_id, golden.device);
    EXPECT_EQ(gpu.compute_major, golden.major);
    EXPECT_EQ(gpu.compute_minor, golden.minor);
    EXPECT_EQ(link_count(gpu), golden.links);
    EXPECT_EQ(gpu.power_limit_mw, golden.watts * 1000);
    EXPECT_EQ(gpu.mig.profile_count, golden.profiles);
  }
}

TEST(Machines, Dgx1IsTheHybridCubeMesh) {
  const auto machine = load_built_in("dgx1-v100");
  EXPECT_EQ(links_between(*machine, 0, 3), 2u);
  EXPECT_EQ(links_between(*machine, 0, 4), 2u);
  EXPECT_EQ(links_between(*machine, 0, 1), 1u);
  EXPECT_EQ(links_between(*machine, 0, 5), 0u);
  EXPECT_EQ(machine->gpus[0].topology[1], kTopologySingle);
  EXPECT_EQ(machine->gpus[0].topology[2], kTopologyHostBridge);
  EXPECT_EQ(machine->gpus[0].topology[4], kTopologySystem);
}

TEST(Machines, DistributeSwitchesEvenly) {
  const auto h100 = load_built_in("hgx-h100");
  std::map<int, int> by_bus;
  for (std::size_t i = 0; i < 18; ++i) ++by_bus[h100->gpus[0].links[i].remote_pci.bus];
  EXPECT_EQ(by_bus, (std::map<int, int>{{7, 5}, {8, 4}, {9, 5}, {10, 4}}));
  const auto dgx2 = load_built_in("dgx2-v100");
  EXPECT_EQ(dgx2->gpus[7].links[5].remote_pci.bus, 0x65);
  EXPECT_EQ(dgx2->gpus[8].links[0].remote_pci.bus, 0xc1);
}

TEST(Machines, HardwareNamesOfMigProfiles) {
  const auto machine = load_built_in("hgx-h100");
  const std::map<std::uint32_t, std::string> wanted = {{19, "1g.10gb"}, {20, "1g.10gb+me"}, {15, "1g.20gb"},
                                                       {14, "2g.20gb"}, {9, "3g.40gb"},     {5, "4g.40gb"},
                                                       {0, "7g.80gb"}};
  for (const auto& [id, name] : wanted) {
    const MigProfile* profile = find_profile(machine->gpus[0], id);
    ASSERT_NE(profile, nullptr) << id;
    EXPECT_EQ(profile->name, name);
  }
  EXPECT_EQ(load_built_in("dgx-a100")->gpus[0].mig.mode_needs_reset, 1);
  EXPECT_EQ(machine->gpus[0].mig.mode_needs_reset, 0);
}

TEST(Identity, IsStableAndDependsOnTheSeed) {
  const auto first = load_machine("t4");
  const auto again = load_machine("t4");
  const auto other = load_machine("t4", {"node-b"});
  ASSERT_TRUE(first && again && other);
  EXPECT_STREQ((*first)->gpus[2].uuid, (*again)->gpus[2].uuid);
  EXPECT_STREQ((*first)->gpus[2].serial, (*again)->gpus[2].serial);
  EXPECT_STRNE((*first)->gpus[2].uuid, (*other)->gpus[2].uuid);
  EXPECT_STRNE((*first)->gpus[2].serial, (*other)->gpus[2].serial);
}

constexpr const char* kCustomMachine = R"(version: 1
name: own
driver: {version: 580.95.05, cuda: "13.0", memacct: dmem}
models:
  card:
    name: Own Card
    architecture: ada
    compute_capability: "8.9"
    memory: {total_mib: 1024, reserved_mib: 24}
gpus:
  count: 3
  model: card
  each:
    1: {model: t4-16gb, minor: 7, uuid: GPU-00000000-0000-4000-8000-000000000001, memory: {total_mib: 15000}}
)";

TEST(Custom, AcceptsModelsAndOverrides) {
  const auto machine = parse_machine(kCustomMachine, "own.yaml");
  ASSERT_TRUE(machine) << machine.error().full_message();
  const Machine& own = **machine;
  EXPECT_STREQ(own.driver.version, "580.95.05");
  EXPECT_STREQ(own.driver.nvml_version, "13.580.95.05");
  EXPECT_EQ(own.driver.cuda_version, 13000);
  EXPECT_EQ(own.memory.mode, MemoryBackend::kDmem);
  EXPECT_STREQ(own.gpus[0].name, "Own Card");
  EXPECT_EQ(own.gpus[0].power_usage_mw, kNotReported) << "a value missing in a model is not reported";
  EXPECT_STREQ(own.gpus[1].name, "Tesla T4");
  EXPECT_STREQ(own.gpus[1].uuid, "GPU-00000000-0000-4000-8000-000000000001");
  EXPECT_EQ(own.gpus[1].minor, 7u);
  EXPECT_EQ(own.gpus[1].memory_total, std::uint64_t{15000} << 20);
  EXPECT_EQ(own.gpus[1].memory_reserved, std::uint64_t{441} << 20)
      << "the model's, as only the total is overridden";
}

TEST(Custom, AcceptsAListOfGpus) {
  const auto machine = parse_machine(
      "version: 1\nname: two\ngpus:\n  - {model: t4-16gb, pci: 0000:01:00.0}\n  - {model: l40s-48gb, pci: "
      "0000:02:00.0, numa: 1}\n",
      "f");
  ASSERT_TRUE(machine) << machine.error().full_message();
  EXPECT_STREQ((*machine)->gpus[1].name, "NVIDIA L40S");
  EXPECT_EQ((*machine)->gpus[1].numa_node, 1);
}

std::string with_line(const std::string& more) {
  return "version: 1\nname: own\ngpus: {count: 2, model: v100-sxm2-32gb}\n" + more;
}

TEST(Errors, NamePlaceFieldAndExpectation) {
  const std::map<std::string, std::string> cases = {
      {"version: 1\nname: own\ngpus: {count: 0, model: t4-16gb}\n",
       "own.yaml:3:15: gpus.count: '0' is not an integer from 1 to 64"},
      {"version: 1\nname: own\ngpus: {count: 2, model: t4-16g}\n",
       "own.yaml:3:25: gpus.model: no model 't4-16g', did you mean 't4-16gb'?"},
      {"version: 2\nname: own\ngpus: {count: 2, model: t4-16gb}\n",
       "own.yaml:1:10: version: '2' is not an integer from 1 to 1"},
      {"name: own\n", "own.yaml:1:1: missing key 'version'"},
      {with_line("topologie: {}\n"), "own.yaml:4:1: topologie: unknown key, did you mean 'topology'?"},
      {with_line("links: {matrix: [[0, 1], [2, 0]]}\n"),
       "own.yaml:4:26: links.matrix[1][0]: is 2, but the other way it is 1"},
      {with_line("links: {matrix: [[0, 1]]}\n"),
       "own.yaml:4:17: links.matrix: expected a list of 2 rows, one per GPU"},
      {with_line("links: {nvswitch: 37}\n"),
       "own.yaml:4:19: links.nvswitch: '37' is not an integer from 1 to 36"},
      {with_line("links: {}\n"), "own.yaml:4:8: links: expected either 'matrix' or 'nvswitch'"},
      {with_line("numa_cpus: {0: 5-2}\n"),
       "own.yaml:4:16: numa_cpus.0: expected a list of CPUs below 1024, like \"0-19,40-59\""},
      {with_line("topology: {single: [[0, 2]]}\n"),
       "own.yaml:4:25: topology.single[0][1]: '2' is not an integer from 0 to 1"},
      {with_line("fabric: {cluster_uuid: 9c6f}\n"),
       "own.yaml:4:24: fabric.cluster_uuid: expected a UUID like 9c6f5af3-53bf-49b5-a436-b66766c413c3"},
      {"version: 1\nname: own\ngpus: {count: 2, model: t4-16gb, pci: [\"1b:00.0\", \"0:1:0.0\"]}\n",
       "own.yaml:3:40: gpus.pci[0]: '1b:00.0' is not a PCI address like 0000:1b:00.0"},
      {"version: 1\nname: own\ngpus: {count: 2, model: t4-16gb, pci: [\"0:1:0.0\", \"0:1:0.0\"]}\n",
       "own.yaml:3:7: gpus: GPUs 0 and 1 have one PCI address"},
      {"version: 1\nname: own\ngpus: {count: 2, model: t4-16gb}\nlinks: {nvswitch: 2}\n",
       "own.yaml:4:19: links.nvswitch: GPU 0 has no NVLink: its model needs the key 'nvlink'"},
      {"version: 1\nname: a\nname: b\ngpus: {count: 1, model: t4-16gb}\n",
       "own.yaml:3:1: name: duplicate key"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(machine_error(text), wanted) << text;
}

TEST(Errors, OfNames) {
  EXPECT_EQ(load_machine("hgx-h10").error().full_message(),
            "hgx-h10: no such machine, did you mean 'hgx-h100'?");
  EXPECT_EQ(load_machine("/nowhere/x.yaml").error().code(), Code::kNotFound);
}

TEST(Errors, OfMigProfiles) {
  const std::string head =
      "version: 1\nname: own\nmodels:\n  m:\n    name: M\n    architecture: hopper\n    compute_capability: "
      "\"9.0\"\n"
      "    memory: {total_mib: 8192}\n    mig:\n      profiles:\n";
  const std::string tail = "gpus: {count: 1, model: m}\n";
  const std::string row =
      "        - {name: 1g.1gb, id: 19, index: 0, slices: 1, memory_slices: 1, instances: 7, memory_mib: "
      "1000, multiprocessors: 16, ";
  EXPECT_EQ(machine_error(head + row + "placements: [0, 1]}\n" + tail), "no error");
  EXPECT_EQ(machine_error(head + row + "placements: [1, 0]}\n" + tail),
            "own.yaml:11:138: models.m.mig.profiles[0].placements: expected 1 to 8 increasing first slices");
  EXPECT_EQ(machine_error(head + row + "placements: [8]}\n" + tail),
            "own.yaml:11:139: models.m.mig.profiles[0].placements[0]: '8' is not an integer from 0 to 7");
  EXPECT_EQ(machine_error(head + row + "placements: [0]}\n" + row + "placements: [1]}\n" + tail),
            "own.yaml:12:11: models.m.mig.profiles[1]: duplicate id or index of a profile");
}

}  // namespace
}  // namespace gpulet::sim
