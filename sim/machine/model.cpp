#include "sim/machine/model.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

constexpr std::uint32_t kHopperSwitch = 0x22a310de;

std::size_t count_links(const Gpu& gpu) {
  return static_cast<std::size_t>(std::count_if(std::begin(gpu.links), std::end(gpu.links),
                                                [](const NvLink& l) { return l.present != 0; }));
}

NvLink trained_link(const NvLinkKind& kind) {
  NvLink link{};
  link.present = link.active = 1;
  link.version = kind.version;
  link.speed_mbps = kind.speed_mbps;
  return link;
}

NvLink link_to_gpu(const NvLinkKind& kind, const Gpu& remote, std::size_t remote_link) {
  NvLink link = trained_link(kind);
  link.remote = kRemoteGpu;
  link.remote_pci = remote.pci;
  link.remote_device_id = remote.pci_device_id;
  link.remote_link = static_cast<std::uint32_t>(remote_link);
  return link;
}

// Checks that the model of every linked GPU has NVLink.
bool has_link_kinds(FirstError& problem, const Node& node, const std::string& path, const Machine& machine,
                    const NvLinkKinds& kinds) {
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    if (kinds[i].version != 0) continue;
    problem.report_error(node, path,
                         "GPU " + std::to_string(i) + " has no NVLink: its model needs the key 'nvlink'");
    return false;
  }
  return true;
}

// Adds `count` links between two GPUs, each the next free one at both ends.
void link_gpus(Machine& machine, std::uint32_t a, std::uint32_t b, std::int64_t count,
               const NvLinkKinds& kinds) {
  for (std::int64_t n = 0; n < count; ++n) {
    Gpu& one = machine.gpus[a];
    Gpu& other = machine.gpus[b];
    const std::size_t at_one = count_links(one);
    const std::size_t at_other = count_links(other);
    one.links[at_one] = link_to_gpu(kinds[a], other, at_other);
    other.links[at_other] = link_to_gpu(kinds[b], one, at_one);
  }
}

void read_matrix(FirstError& problem, const Node& node, const std::string& path, Machine& machine,
                 const NvLinkKinds& kinds) {
  const std::size_t gpus = machine.gpu_count;
  if (node.kind != Node::Kind::kSequence || node.items.size() != gpus) {
    problem.report_error(node, path, "expected a list of " + std::to_string(gpus) + " rows, one per GPU");
    return;
  }
  if (!has_link_kinds(problem, node, path, machine, kinds)) return;
  std::vector<std::vector<std::int64_t>> rows;
  for (std::size_t i = 0; i < gpus; ++i) {
    const std::string row = path + "[" + std::to_string(i) + "]";
    rows.push_back(read_integers(problem, node.items[i], row, {0, static_cast<std::int64_t>(kMaxLinks)}));
    if (problem.has_error()) return;
    if (rows[i].size() != gpus)
      problem.report_error(node.items[i], row, "needs " + std::to_string(gpus) + " counts of links");
    if (problem.has_error()) return;
    std::int64_t total = 0;
    for (const std::int64_t count : rows[i]) total += count;
    if (rows[i][i] != 0)
      problem.report_error(node.items[i], row,
                           "a GPU has no link to itself: entry " + std::to_string(i) + " must be 0");
    if (total > static_cast<std::int64_t>(kMaxLinks))
      problem.report_error(node.items[i], row, "more than 36 links of a GPU");
    for (std::size_t j = 0; j < i; ++j) {
      if (rows[i][j] == rows[j][i]) continue;
      problem.report_error(
          node.items[i], row + "[" + std::to_string(j) + "]",
          "is " + std::to_string(rows[i][j]) + ", but the other way it is " + std::to_string(rows[j][i]));
    }
  }
  if (problem.has_error()) return;
  for (std::uint32_t i = 0; i < gpus; ++i) {
    for (std::uint32_t j = i + 1; j < gpus; ++j) link_gpus(machine, i, j, rows[i][j], kinds);
  }
}

struct SwitchFabric {
  std::int64_t links = 0;  // per GPU
  std::int64_t boards = 1;
  std::uint32_t device_id = kHopperSwitch;
  std::vector<PciAddress> switches;  // empty: not on this node's PCI bus
};

// Distributes GPUs and switches evenly to the boards, in order, and a GPU's links to its board's switches.
void connect_switch_links(Machine& machine, const SwitchFabric& fabric, const NvLinkKinds& kinds) {
  const auto boards = static_cast<std::size_t>(fabric.boards);
  const auto links = static_cast<std::size_t>(fabric.links);
  const std::size_t gpus_on_board = (machine.gpu_count + boards - 1) / boards;
  const std::size_t switches_on_board = fabric.switches.size() / boards;
  std::vector<std::uint32_t> ports(std::max<std::size_t>(1, fabric.switches.size()), 0);
  for (std::size_t i = 0; i < machine.gpu_count; ++i) {
    for (std::size_t n = 0; n < links; ++n) {
      NvLink link = trained_link(kinds[i]);
      link.remote = kRemoteSwitch;
      std::size_t chosen = 0;
      if (switches_on_board != 0) {
        chosen = i / gpus_on_board * switches_on_board + n * switches_on_board / links;
        link.remote_pci = fabric.switches[chosen];
        link.remote_device_id = fabric.device_id;
      }
      link.remote_link = ports[chosen]++;
      machine.gpus[i].links[n] = link;
    }
  }
}

void read_nvswitch(FirstError& problem, const Node& node, const std::string& path, Machine& machine,
                   const NvLinkKinds& kinds) {
  constexpr Range kLinks{1, static_cast<std::int64_t>(kMaxLinks)};
  SwitchFabric fabric;
  if (node.kind == Node::Kind::kMapping) {
    Section section(problem, node, path);
    section.require_key("links");
    section.integer_key("links", fabric.links, kLinks);
    section.integer_key("boards", fabric.boards, {1, 8});
    section.pci_id_key("device_id", fabric.device_id);
    if (const Node* list = section.find_key("switches")) {
      const std::string where = section.key_path("switches");
      if (list->kind != Node::Kind::kSequence)
        problem.report_error(*list, where, "expected a list of PCI addresses");
      for (std::size_t i = 0; i < list->items.size(); ++i) {
        const auto address = read_pci_address(problem, list->items[i], where + "[" + std::to_string(i) + "]");
        if (address) fabric.switches.push_back(*address);
      }
      if (fabric.switches.size() % static_cast<std::size_t>(fabric.boards) != 0) {
        problem.report_error(
            *list, where,
            "needs as many switches on each of the " + std::to_string(fabric.boards) + " boards");
      }
    }
    section.report_unknown_keys();
  } else if (const auto count = read_integer(problem, node, path, kLinks)) {
    fabric.links = *count;
  }
  if (problem.has_error() || !has_link_kinds(problem, node, path, machine, kinds)) return;
  connect_switch_links(machine, fabric, kinds);
}

void read_groups(FirstError& problem, Section& topology, const std::string& key, TopologyLevel level,
                 Machine& machine) {
  const Node* node = topology.find_key(key);
  if (node == nullptr) return;
  const std::string path = topology.key_path(key);
  if (node->kind != Node::Kind::kSequence) {
    problem.report_error(*node, path, "expected a list of groups of GPUs, like [[0, 1], [2, 3]]");
    return;
  }
  for (std::size_t i = 0; i < node->items.size(); ++i) {
    const auto group = read_integers(problem, node->items[i], path + "[" + std::to_string(i) + "]",
                                     {0, static_cast<std::int64_t>(machine.gpu_count) - 1});
    for (const std::int64_t a : group) {
      for (const std::int64_t b : group) {
        std::uint8_t& known = machine.gpus[a].topology[b];
        if (a != b) known = std::min<std::uint8_t>(known, level);
      }
    }
  }
}

}  // namespace

void read_links(FirstError& problem, Section& machine_section, Machine& machine, const NvLinkKinds& kinds) {
  const Node* node = machine_section.find_key("links");
  if (node == nullptr || problem.has_error()) return;
  Section section(problem, *node, machine_section.key_path("links"));
  const Node* matrix = section.find_key("matrix");
  const Node* nvswitch = section.find_key("nvswitch");
  section.report_unknown_keys();
  if (problem.has_error()) return;
  if ((matrix != nullptr) == (nvswitch != nullptr)) {
    problem.report_error(*node, machine_section.key_path("links"), "expected either 'matrix' or 'nvswitch'");
    return;
  }
  if (matrix != nullptr) read_matrix(problem, *matrix, section.key_path("matrix"), machine, kinds);
  if (nvswitch != nullptr) read_nvswitch(problem, *nvswitch, section.key_path("nvswitch"), machine, kinds);
}

void read_topology(FirstError& problem, Section& machine_section, Machine& machine) {
  for (std::uint32_t a = 0; a < machine.gpu_count; ++a) {
    for (std::uint32_t b = 0; b < machine.gpu_count; ++b) {
      const bool one_node =
          machine.gpus[a].numa_node == machine.gpus[b].numa_node && machine.gpus[a].numa_node >= 0;
      machine.gpus[a].topology[b] = a == b ? kTopologyInternal : one_node ? kTopologyNode : kTopologySystem;
    }
  }
  const Node* node = machine_section.find_key("topology");
  if (node == nullptr) return;
  Section section(problem, *node, machine_section.key_path("topology"));
  read_groups(problem, section, "internal", kTopologyInternal, machine);
  read_groups(problem, section, "single", kTopologySingle, machine);
  read_groups(problem, section, "multiple", kTopologyMultiple, machine);
  read_groups(problem, section, "host_bridge", kTopologyHostBridge, machine);
  section.report_unknown_keys();
}

namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Range kMebibytes{1, 16 << 20};
constexpr Range kMegahertz{1, 20'000};
constexpr Range kCelsius{0, 200};
constexpr Range kWatts{0, 10'000};
constexpr std::uint32_t kAmpere = 7;
constexpr std::uint32_t kHopper = 9;

void read_clock_set(FirstError& problem, Section& clocks, const std::string& key, std::int32_t (&set)[4]) {
  const Node* node = clocks.find_key(key);
  if (node == nullptr) return;
  Section section(problem, *node, clocks.key_path(key));
  section.integer_key("graphics", set[0], kMegahertz);
  set[1] = set[0];
  section.integer_key("sm", set[1], kMegahertz);
  section.integer_key("memory", set[2], kMegahertz);
  section.integer_key("video", set[3], kMegahertz);
  section.report_unknown_keys();
}

void read_clocks(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("clocks_mhz");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("clocks_mhz"));
  read_clock_set(problem, section, "idle", gpu.idle.clocks);
  read_clock_set(problem, section, "max", gpu.clocks.max);
  std::copy(std::begin(gpu.clocks.max), std::end(gpu.clocks.max), gpu.clocks.application_default);
  read_clock_set(problem, section, "application", gpu.clocks.application_default);
  section.report_unknown_keys();
}

void read_temperature(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("temperature_c");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("temperature_c"));
  section.integer_key("idle", gpu.idle.temperature, kCelsius);
  section.integer_key("memory", gpu.idle.memory_temperature, kCelsius);
  section.integer_key("max", gpu.temperature_gpu_max, kCelsius);
  section.integer_key("slowdown", gpu.temperature_slowdown, kCelsius);
  section.integer_key("shutdown", gpu.temperature_shutdown, kCelsius);
  section.integer_key("memory_max", gpu.temperature_memory_max, kCelsius);
  section.report_unknown_keys();
}

void read_watts(Section& section, const std::string& key, std::int32_t& milliwatts) {
  std::int32_t watts = kNotReported;
  section.integer_key(key, watts, kWatts);
  if (watts != kNotReported) milliwatts = watts * 1000;
}

void read_power(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("power_w");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("power_w"));
  read_watts(section, "idle", gpu.idle.power_mw);
  read_watts(section, "limit", gpu.power_limit_default_mw);
  read_watts(section, "min", gpu.power_limit_min_mw);
  read_watts(section, "max", gpu.power_limit_max_mw);
  section.report_unknown_keys();
  if (gpu.power_limit_min_mw > gpu.power_limit_default_mw ||
      gpu.power_limit_default_mw > gpu.power_limit_max_mw) {
    problem.report_error(*node, model.key_path("power_w"), "min, limit and max must be increasing");
  }
}

void read_mebibytes(Section& section, const std::string& key, std::uint64_t& bytes) {
  std::uint64_t mebibytes = 0;
  section.integer_key(key, mebibytes, kMebibytes);
  if (mebibytes != 0) bytes = mebibytes * kMiB;
}

void read_memory(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("memory");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("memory"));
  read_mebibytes(section, "total_mib", gpu.memory_total);
  read_mebibytes(section, "reserved_mib", gpu.memory_reserved);
  read_mebibytes(section, "bar1_mib", gpu.bar1_total);
  section.integer_key("bus_bits", gpu.memory_bus_bits, {1, 65'536});
  section.report_unknown_keys();
  if (gpu.memory_reserved >= gpu.memory_total)
    problem.report_error(*node, model.key_path("memory"), "reserved_mib must be less than total_mib");
}

void read_placements(FirstError& problem, Section& section, const Node& owner, std::uint32_t memory_slices,
                     MigProfile& profile) {
  const Node* node = section.require_key("placements");
  if (node == nullptr) return;
  const auto starts = read_integers(problem, *node, section.key_path("placements"), {0, 7});
  if (starts.empty() || starts.size() > kMaxPlacements ||
      !std::is_sorted(starts.begin(), starts.end(), std::less_equal<>())) {
    problem.report_error(*node, section.key_path("placements"), "expected 1 to 8 increasing first slices");
    return;
  }
  if (static_cast<std::uint32_t>(starts.back()) + profile.memory_slices > memory_slices) {
    problem.report_error(owner, section.key_path("placements"),
                         "the last one reaches beyond slice " + std::to_string(memory_slices - 1));
    return;
  }
  profile.placement_count = static_cast<std::uint32_t>(starts.size());
  std::transform(starts.begin(), starts.end(), profile.placements,
                 [](std::int64_t s) { return static_cast<std::uint8_t>(s); });
}

MigProfile read_profile(FirstError& problem, const Node& node, const std::string& path,
                        std::uint32_t memory_slices) {
  MigProfile profile{};
  Section section(problem, node, path);
  for (const char* key :
       {"name", "id", "index", "slices", "memory_slices", "instances", "memory_mib", "multiprocessors"}) {
    section.require_key(key);
  }
  constexpr Range kCount{0, 64};
  section.text_key("name", profile.name);
  section.integer_key("id", profile.id, {0, 255});
  section.integer_key("index", profile.index, {0, static_cast<std::int64_t>(kMaxProfiles) - 1});
  section.integer_key("slices", profile.slices, {1, 8});
  section.integer_key("memory_slices", profile.memory_slices, {1, memory_slices});
  section.integer_key("instances", profile.max_instances, {1, 8});
  section.integer_key("memory_mib", profile.memory_mib, kMebibytes);
  section.integer_key("multiprocessors", profile.multiprocessors, {1, 1024});
  section.integer_key("copy_engines", profile.copy_engines, kCount);
  section.integer_key("decoders", profile.decoders, kCount);
  section.integer_key("encoders", profile.encoders, kCount);
  section.integer_key("jpegs", profile.jpegs, kCount);
  section.integer_key("ofas", profile.ofas, kCount);
  section.integer_key("capabilities", profile.capabilities, {0, 3});
  read_placements(problem, section, node, memory_slices, profile);
  section.report_unknown_keys();
  return profile;
}

void read_mig(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("mig");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("mig"));
  Mig& mig = gpu.mig;
  mig = {};
  mig.memory_slices = 8;
  section.integer_key("memory_slices", mig.memory_slices, {1, 8});
  section.flag_key("mode_needs_reset", mig.mode_needs_reset);
  section.flag_key("passthrough", mig.passthrough);
  section.flag_key("enabled", mig.current);
  mig.pending = mig.current;
  const Node* list = section.require_key("profiles");
  section.report_unknown_keys();
  if (list == nullptr || problem.has_error()) return;
  const std::string path = section.key_path("profiles");
  if (list->kind != Node::Kind::kSequence || list->items.empty() || list->items.size() > kMaxProfiles) {
    problem.report_error(*list, path,
                         "expected a list of 1 to " + std::to_string(kMaxProfiles) + " profiles");
    return;
  }
  for (std::size_t i = 0; i < list->items.size() && !problem.has_error(); ++i) {
    const std::string item = path + "[" + std::to_string(i) + "]";
    MigProfile profile = read_profile(problem, list->items[i], item, mig.memory_slices);
    if (problem.has_error()) return;
    if (find_profile(gpu, profile.id) != nullptr || find_profile_by_index(gpu, profile.index) != nullptr) {
      problem.report_error(list->items[i], item, "duplicate id or index of a profile");
      return;
    }
    derive_compute_profiles(profile);
    mig.profiles[mig.profile_count++] = profile;
  }
  mig.capable = 1;
}

void read_nvlink(FirstError& problem, Section& model, NvLinkKind& link) {
  const Node* node = model.find_key("nvlink");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("nvlink"));
  section.choice_key("version", link.version, {"1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0"},
                     {1, 2, 3, 4, 5, 6, 7, 8});
  section.integer_key("speed_mbps", link.speed_mbps, {1, 1'000'000});
  section.report_unknown_keys();
}

void read_inforom(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("inforom");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("inforom"));
  section.text_key("image", gpu.inforom_image);
  section.text_key("oem", gpu.inforom_oem);
  section.text_key("ecc", gpu.inforom_ecc);
  section.text_key("power", gpu.inforom_power);
  section.report_unknown_keys();
}

void read_pcie(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("pcie");
  if (node == nullptr) return;
  Section section(problem, *node, model.key_path("pcie"));
  section.integer_key("generation", gpu.pcie_generation_max, {1, 6});
  section.integer_key("width", gpu.pcie_width_max, {1, 32});
  section.report_unknown_keys();
}

void read_capability(FirstError& problem, Section& model, Gpu& gpu) {
  const Node* node = model.find_key("compute_capability");
  if (node == nullptr) return;
  const auto parts = text::split(node->scalar, '.');
  const auto major = parts.size() == 2 ? text::parse_unsigned(parts[0]) : std::nullopt;
  const auto minor = parts.size() == 2 ? text::parse_unsigned(parts[1]) : std::nullopt;
  if (!major || !minor || *major > 99 || *minor > 9) {
    problem.report_error(*node, model.key_path("compute_capability"), "expected a string like \"9.0\"");
    return;
  }
  gpu.compute_major = static_cast<std::int32_t>(*major);
  gpu.compute_minor = static_cast<std::int32_t>(*minor);
}

}  // namespace

Gpu blank_gpu() {
  Gpu gpu{};
  for (std::int32_t* number :
       {&gpu.memory_numa_node, &gpu.pcie_generation_max, &gpu.pcie_width_max, &gpu.fan_percent,
        &gpu.temperature_shutdown, &gpu.temperature_slowdown, &gpu.temperature_memory_max,
        &gpu.temperature_gpu_max, &gpu.power_limit_default_mw, &gpu.power_limit_min_mw,
        &gpu.power_limit_max_mw, &gpu.idle.power_mw, &gpu.idle.temperature, &gpu.idle.memory_temperature,
        &gpu.numa_node}) {
    *number = kNotReported;
  }
  for (auto* set : {&gpu.clocks.max, &gpu.clocks.application_default, &gpu.idle.clocks}) {
    std::fill(std::begin(*set), std::end(*set), kNotReported);
  }
  gpu.persistence_mode = 1;
  return gpu;
}

void read_model(FirstError& problem, Section& section, Gpu& gpu, NvLinkKind& link) {
  section.text_key("name", gpu.name);
  section.choice_key("brand", gpu.brand,
                     {"quadro", "tesla", "nvs", "geforce", "titan", "quadro-rtx", "nvidia-rtx", "nvidia"},
                     {1, 2, 3, 5, 6, 12, 13, 14});
  section.choice_key(
      "architecture", gpu.architecture,
      {"kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin"},
      {2, 3, 4, 5, 6, 7, 8, 9, 10, 13});
  read_capability(problem, section, gpu);
  section.pci_id_key("device_id", gpu.pci_device_id);
  section.pci_id_key("subsystem_id", gpu.pci_subsystem_id);
  section.text_key("board_part_number", gpu.board_part_number);
  section.text_key("vbios", gpu.vbios_version);
  read_inforom(problem, section, gpu);
  section.integer_key("cores", gpu.cores, {1, 1'000'000});
  section.integer_key("multiprocessors", gpu.multiprocessors, {1, 1024});
  read_memory(problem, section, gpu);
  read_pcie(problem, section, gpu);
  read_clocks(problem, section, gpu);
  read_temperature(problem, section, gpu);
  read_power(problem, section, gpu);
  section.integer_key("fans", gpu.fan_count, {0, 8});
  section.flag_key("ecc", gpu.ecc_supported);
  section.flag_key("retired_pages", gpu.retired_pages_supported);
  section.integer_key("row_remapping_banks", gpu.remapped_rows.bank_histogram[0], {1, 1'000'000});
  section.flag_key("gsp", gpu.gsp_firmware_mode);
  read_nvlink(problem, section, link);
  read_mig(problem, section, gpu);
}

void complete_gpu(Gpu& gpu) {
  gpu.pcie_generation = gpu.pcie_generation_max;
  gpu.pcie_width = gpu.pcie_width_max;
  std::copy(std::begin(gpu.idle.clocks), std::end(gpu.idle.clocks), gpu.clocks.current);
  std::copy(std::begin(gpu.clocks.application_default), std::end(gpu.clocks.application_default),
            gpu.clocks.application);
  gpu.temperature = gpu.idle.temperature;
  gpu.memory_temperature = gpu.idle.memory_temperature;
  gpu.power_usage_mw = gpu.idle.power_mw;
  gpu.power_limit_mw = gpu.power_limit_default_mw;
  gpu.clock_event_reasons = 1;  // idle
  if (gpu.fan_count > 0) gpu.fan_percent = 30;
  gpu.ecc_current = gpu.ecc_pending = gpu.ecc_supported != 0 ? 1 : 0;
  gpu.remapped_rows.supported = gpu.remapped_rows.bank_histogram[0] != 0 ? 1 : 0;
  gpu.supported_events = kEventPState | kEventXid | kEventClock;
  if (gpu.ecc_supported != 0) gpu.supported_events |= kEventSingleBitEcc | kEventDoubleBitEcc;
  if (gpu.architecture >= kAmpere) gpu.supported_events |= kEventGpuUnavailable | kEventGpuRecoveryAction;
  if (gpu.mig.profile_count != 0) gpu.supported_events |= kEventMigConfig;
  if (gpu.architecture >= kHopper) gpu.supported_events |= kEventsSinceHopper;
}

}  // namespace gpulet::sim
