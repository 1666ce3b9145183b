#include "sim/machine/model.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr Range kMebibytes{1, 16 << 20};
constexpr Range kMegahertz{1, 20'000};
constexpr Range kCelsius{0, 200};
constexpr Range kWatts{0, 10'000};
constexpr std::uint32_t kAmpere = 7;
constexpr std::uint32_t kHopper = 9;

void read_clock_set(Problem& problem, Section& clocks, const std::string& key, std::int32_t (&set)[4]) {
  const Node* node = clocks.take(key);
  if (node == nullptr) return;
  Section section(problem, *node, clocks.path(key));
  section.integer("graphics", set[0], kMegahertz);
  set[1] = set[0];
  section.integer("sm", set[1], kMegahertz);
  section.integer("memory", set[2], kMegahertz);
  section.integer("video", set[3], kMegahertz);
  section.finish();
}

void read_clocks(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("clocks_mhz");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("clocks_mhz"));
  read_clock_set(problem, section, "idle", gpu.idle.clocks);
  read_clock_set(problem, section, "max", gpu.clocks.max);
  std::copy(std::begin(gpu.clocks.max), std::end(gpu.clocks.max), gpu.clocks.application_default);
  read_clock_set(problem, section, "application", gpu.clocks.application_default);
  section.finish();
}

void read_temperature(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("temperature_c");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("temperature_c"));
  section.integer("idle", gpu.idle.temperature, kCelsius);
  section.integer("memory", gpu.idle.memory_temperature, kCelsius);
  section.integer("max", gpu.temperature_gpu_max, kCelsius);
  section.integer("slowdown", gpu.temperature_slowdown, kCelsius);
  section.integer("shutdown", gpu.temperature_shutdown, kCelsius);
  section.integer("memory_max", gpu.temperature_memory_max, kCelsius);
  section.finish();
}

void read_watts(Section& section, const std::string& key, std::int32_t& milliwatts) {
  std::int32_t watts = kNotReported;
  section.integer(key, watts, kWatts);
  if (watts != kNotReported) milliwatts = watts * 1000;
}

void read_power(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("power_w");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("power_w"));
  read_watts(section, "idle", gpu.idle.power_mw);
  read_watts(section, "limit", gpu.power_limit_default_mw);
  read_watts(section, "min", gpu.power_limit_min_mw);
  read_watts(section, "max", gpu.power_limit_max_mw);
  section.finish();
  if (gpu.power_limit_min_mw > gpu.power_limit_default_mw ||
      gpu.power_limit_default_mw > gpu.power_limit_max_mw) {
    problem.report(*node, model.path("power_w"), "min, limit and max must rise");
  }
}

void read_mebibytes(Section& section, const std::string& key, std::uint64_t& bytes) {
  std::uint64_t mebibytes = 0;
  section.integer(key, mebibytes, kMebibytes);
  if (mebibytes != 0) bytes = mebibytes * kMiB;
}

void read_memory(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("memory");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("memory"));
  read_mebibytes(section, "total_mib", gpu.memory_total);
  read_mebibytes(section, "reserved_mib", gpu.memory_reserved);
  read_mebibytes(section, "bar1_mib", gpu.bar1_total);
  section.integer("bus_bits", gpu.memory_bus_bits, {1, 65'536});
  section.finish();
  if (gpu.memory_reserved >= gpu.memory_total)
    problem.report(*node, model.path("memory"), "reserved_mib must be less than total_mib");
}

void read_placements(Problem& problem, Section& section, const Node& owner, std::uint32_t memory_slices,
                     MigProfile& profile) {
  const Node* node = section.need("placements");
  if (node == nullptr) return;
  const auto starts = read_integers(problem, *node, section.path("placements"), {0, 7});
  if (starts.empty() || starts.size() > kMaxPlacements ||
      !std::is_sorted(starts.begin(), starts.end(), std::less_equal<>())) {
    problem.report(*node, section.path("placements"), "needs 1 to 8 first slices, rising");
    return;
  }
  if (static_cast<std::uint32_t>(starts.back()) + profile.memory_slices > memory_slices) {
    problem.report(owner, section.path("placements"),
                   "the last one reaches beyond slice " + std::to_string(memory_slices - 1));
    return;
  }
  profile.placement_count = static_cast<std::uint32_t>(starts.size());
  std::transform(starts.begin(), starts.end(), profile.placements,
                 [](std::int64_t s) { return static_cast<std::uint8_t>(s); });
}

MigProfile read_profile(Problem& problem, const Node& node, const std::string& path,
                        std::uint32_t memory_slices) {
  MigProfile profile{};
  Section section(problem, node, path);
  for (const char* key :
       {"name", "id", "index", "slices", "memory_slices", "instances", "memory_mib", "multiprocessors"}) {
    section.need(key);
  }
  constexpr Range kCount{0, 64};
  section.text("name", profile.name);
  section.integer("id", profile.id, {0, 255});
  section.integer("index", profile.index, {0, static_cast<std::int64_t>(kMaxProfiles) - 1});
  section.integer("slices", profile.slices, {1, 8});
  section.integer("memory_slices", profile.memory_slices, {1, memory_slices});
  section.integer("instances", profile.max_instances, {1, 8});
  section.integer("memory_mib", profile.memory_mib, kMebibytes);
  section.integer("multiprocessors", profile.multiprocessors, {1, 1024});
  section.integer("copy_engines", profile.copy_engines, kCount);
  section.integer("decoders", profile.decoders, kCount);
  section.integer("encoders", profile.encoders, kCount);
  section.integer("jpegs", profile.jpegs, kCount);
  section.integer("ofas", profile.ofas, kCount);
  section.integer("capabilities", profile.capabilities, {0, 3});
  read_placements(problem, section, node, memory_slices, profile);
  section.finish();
  return profile;
}

void read_mig(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("mig");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("mig"));
  Mig& mig = gpu.mig;
  mig = {};
  mig.memory_slices = 8;
  section.integer("memory_slices", mig.memory_slices, {1, 8});
  section.flag("mode_needs_reset", mig.mode_needs_reset);
  section.flag("enabled", mig.current);
  mig.pending = mig.current;
  const Node* list = section.need("profiles");
  section.finish();
  if (list == nullptr || problem.any()) return;
  const std::string path = section.path("profiles");
  if (list->kind != Node::Kind::kSequence || list->items.empty() || list->items.size() > kMaxProfiles) {
    problem.report(*list, path, "needs a list of 1 to " + std::to_string(kMaxProfiles) + " profiles");
    return;
  }
  for (std::size_t i = 0; i < list->items.size() && !problem.any(); ++i) {
    const std::string item = path + "[" + std::to_string(i) + "]";
    MigProfile profile = read_profile(problem, list->items[i], item, mig.memory_slices);
    if (problem.any()) return;
    if (find_profile(gpu, profile.id) != nullptr || find_profile_by_index(gpu, profile.index) != nullptr) {
      problem.report(list->items[i], item, "its id or index is another profile's");
      return;
    }
    derive_compute_profiles(profile);
    mig.profiles[mig.profile_count++] = profile;
  }
  mig.capable = 1;
}

void read_nvlink(Problem& problem, Section& model, NvLinkKind& link) {
  const Node* node = model.take("nvlink");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("nvlink"));
  section.choice("version", link.version, {"1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0"},
                 {1, 2, 3, 4, 5, 6, 7, 8});
  section.integer("speed_mbps", link.speed_mbps, {1, 1'000'000});
  section.finish();
}

void read_inforom(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("inforom");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("inforom"));
  section.text("image", gpu.inforom_image);
  section.text("oem", gpu.inforom_oem);
  section.text("ecc", gpu.inforom_ecc);
  section.text("power", gpu.inforom_power);
  section.finish();
}

void read_pcie(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("pcie");
  if (node == nullptr) return;
  Section section(problem, *node, model.path("pcie"));
  section.integer("generation", gpu.pcie_generation_max, {1, 6});
  section.integer("width", gpu.pcie_width_max, {1, 32});
  section.finish();
}

void read_capability(Problem& problem, Section& model, Gpu& gpu) {
  const Node* node = model.take("compute_capability");
  if (node == nullptr) return;
  const auto parts = text::split(node->scalar, '.');
  const auto major = parts.size() == 2 ? text::parse_unsigned(parts[0]) : std::nullopt;
  const auto minor = parts.size() == 2 ? text::parse_unsigned(parts[1]) : std::nullopt;
  if (!major || !minor || *major > 99 || *minor > 9) {
    problem.report(*node, model.path("compute_capability"), "needs a text like \"9.0\"");
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

void read_model(Problem& problem, Section& section, Gpu& gpu, NvLinkKind& link) {
  section.text("name", gpu.name);
  section.choice("brand", gpu.brand,
                 {"quadro", "tesla", "nvs", "geforce", "titan", "quadro-rtx", "nvidia-rtx", "nvidia"},
                 {1, 2, 3, 5, 6, 12, 13, 14});
  section.choice(
      "architecture", gpu.architecture,
      {"kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin"},
      {2, 3, 4, 5, 6, 7, 8, 9, 10, 13});
  read_capability(problem, section, gpu);
  section.pci_id("device_id", gpu.pci_device_id);
  section.pci_id("subsystem_id", gpu.pci_subsystem_id);
  section.text("board_part_number", gpu.board_part_number);
  section.text("vbios", gpu.vbios_version);
  read_inforom(problem, section, gpu);
  section.integer("cores", gpu.cores, {1, 1'000'000});
  section.integer("multiprocessors", gpu.multiprocessors, {1, 1024});
  read_memory(problem, section, gpu);
  read_pcie(problem, section, gpu);
  read_clocks(problem, section, gpu);
  read_temperature(problem, section, gpu);
  read_power(problem, section, gpu);
  section.integer("fans", gpu.fan_count, {0, 8});
  section.flag("ecc", gpu.ecc_supported);
  section.flag("retired_pages", gpu.retired_pages_supported);
  section.integer("row_remapping_banks", gpu.remapped_rows.bank_histogram[0], {1, 1'000'000});
  section.flag("gsp", gpu.gsp_firmware_mode);
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
  if (gpu.architecture >= kHopper) gpu.supported_events |= kEventDramRetirement | kEventDramRetirementFailure;
}

}  // namespace gpulet::sim
