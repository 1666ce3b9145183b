#include "sim/machine/machine.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "sim/machine/model.h"

namespace gpulet::sim {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxNuma = 63;
constexpr std::uint32_t kFirstRenderMinor = 128;
constexpr std::uint8_t kFabricHealthy = 1;  // NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
constexpr std::string_view kDefaultDriver = "570.124.06";
constexpr std::int32_t kDefaultCuda = 12080;

// Parses one machine. Members for GPUs are indexed.
class MachineReader {
 public:
  MachineReader(FirstError& problem, const MachineOptions& options) : errors_(problem), options_(options) {}
  std::unique_ptr<Machine> read_machine(const Node& root);

 private:
  void read_driver(Section& section);
  void read_inline_models(Section& section);
  bool apply_model(const Node& name, const std::string& path, std::uint32_t gpu);
  void read_machine_gpus(Section& section);
  void read_gpu_list(const Node& list, const std::string& path);
  void read_compact_gpus(const Node& node, const std::string& path);
  void read_one_gpu(const Node& node, const std::string& path, std::uint32_t index);
  void read_gpu_keys(Section& section, std::uint32_t index);
  void read_overrides(Section& section);
  void read_addresses(Section& section);
  void read_numbers(Section& section, const std::string& key, Range range, std::int32_t Gpu::* member);
  void set_identity(std::uint32_t index);
  void check_gpus(const Node& node);
  void read_cpus(Section& section);
  void read_fabric(Section& section);

  FirstError& errors_;
  const MachineOptions& options_;
  std::unique_ptr<Machine> machine_ = std::make_unique<Machine>();
  NvLinkKinds kinds_{};
  std::map<std::string, const Node*> inline_models_;
};

// Returns the hexadecimal digits of a UUID as a number below `limit`.
std::uint64_t number_of(const std::string& uuid, std::uint64_t limit) {
  std::uint64_t value = 0;
  for (const char c : uuid) {
    if (c >= '0' && c <= '9') value = value * 16 + static_cast<std::uint64_t>(c - '0');
    if (c >= 'a' && c <= 'f') value = value * 16 + static_cast<std::uint64_t>(c - 'a' + 10);
  }
  return value % limit;
}

void MachineReader::set_identity(std::uint32_t index) {
  Gpu& gpu = machine_->gpus[index];
  const std::string seed = options_.seed + "/" + machine_->name + "/" + std::to_string(index);
  const std::string uuid = make_uuid("GPU-", seed);
  set_text(gpu.uuid, uuid);
  set_text(gpu.serial, "16" + std::to_string(50'000'000'000ULL + number_of(uuid, 49'999'999'999ULL)));
  gpu.minor = index;
  gpu.render_minor = kFirstRenderMinor + index;
  gpu.module_id = index + 1;
  gpu.pci = PciAddress{0, static_cast<std::uint8_t>(index + 1), 0, 0, 0};
}

void MachineReader::read_driver(Section& section) {
  Driver& driver = machine_->driver;
  set_text(driver.version, kDefaultDriver);
  driver.cuda_version = kDefaultCuda;
  driver.loaded = 1;
  driver.generation = 1;
  if (const Node* node = section.find_key("driver")) {
    Section own(errors_, *node, section.key_path("driver"));
    own.text_key("version", driver.version);
    own.text_key("nvml_version", driver.nvml_version);
    own.choice_key("memacct", machine_->memory.mode, {"auto", "off", "misc", "dmem"}, {0, 1, 2, 3});
    if (const Node* cuda = own.find_key("cuda")) {
      const auto parts = text::split(cuda->scalar, '.');
      const auto major = parts.size() == 2 ? text::parse_unsigned(parts[0]) : std::nullopt;
      const auto minor = parts.size() == 2 ? text::parse_unsigned(parts[1]) : std::nullopt;
      if (!major || !minor || *major > 99 || *minor > 99)
        errors_.report_error(*cuda, own.key_path("cuda"), "expected a string like \"12.8\"");
      else
        driver.cuda_version = static_cast<std::int32_t>(*major * 1000 + *minor * 10);
    }
    own.report_unknown_keys();
  }
  if (driver.nvml_version[0] == '\0') {
    set_text(driver.nvml_version, std::to_string(driver.cuda_version / 1000) + "." + driver.version);
  }
}

void MachineReader::read_inline_models(Section& section) {
  const Node* node = section.find_key("models");
  if (node == nullptr) return;
  const Section models(errors_, *node, section.key_path("models"));
  for (const auto& entry : node->entries) {
    // Parsed here too, to check models that no GPU uses.
    Gpu gpu = blank_gpu();
    NvLinkKind kind;
    Section model(errors_, entry.value, models.key_path(entry.key));
    for (const char* key : {"name", "architecture", "compute_capability", "memory"}) model.require_key(key);
    read_model(errors_, model, gpu, kind);
    model.report_unknown_keys();
    inline_models_[entry.key] = &entry.value;
  }
}

bool MachineReader::apply_model(const Node& name, const std::string& path, std::uint32_t index) {
  Gpu& gpu = machine_->gpus[index];
  gpu = blank_gpu();
  kinds_[index] = {};
  set_identity(index);
  if (const auto own = inline_models_.find(name.scalar); own != inline_models_.end()) {
    Section model(errors_, *own->second, "models." + name.scalar);
    read_model(errors_, model, gpu, kinds_[index]);
    return !errors_.has_error();
  }
  std::vector<std::string> known;
  for (const auto& entry : inline_models_) known.push_back(entry.first);
  for (const BuiltIn& model : built_in_models()) {
    known.emplace_back(model.name);
    if (model.name != name.scalar) continue;
    const std::string file = std::string(model.name) + ".yaml";
    const auto document = config::yaml::parse_yaml(model.text, file);
    if (!document) {
      errors_.report_error(name, path, document.error().full_message());
      return false;
    }
    const std::string before = errors_.swap_file(file);
    Section section(errors_, document->root, "");
    read_model(errors_, section, gpu, kinds_[index]);
    section.report_unknown_keys();
    errors_.swap_file(before);
    return !errors_.has_error();
  }
  const auto nearest = text::nearest(name.scalar, known);
  errors_.report_error(
      name, path,
      "no model '" + name.scalar.substr(0, 40) + "'" +
          (nearest ? ", did you mean '" + *nearest + "'?" : ": one of " + text::join(known, ", ")));
  return false;
}

void MachineReader::read_gpu_keys(Section& section, std::uint32_t index) {
  Gpu& gpu = machine_->gpus[index];
  section.text_key("uuid", gpu.uuid);
  section.text_key("serial", gpu.serial);
  section.integer_key("minor", gpu.minor, {0, 254});
  section.integer_key("module_id", gpu.module_id, {0, 64});
  section.integer_key("numa", gpu.numa_node, {-1, kMaxNuma});
  section.integer_key("memory_numa", gpu.memory_numa_node, {0, 1023});
  if (const Node* node = section.find_key("pci")) {
    if (const auto address = read_pci_address(errors_, *node, section.key_path("pci"))) gpu.pci = *address;
  }
  read_model(errors_, section, gpu, kinds_[index]);
}

void MachineReader::read_one_gpu(const Node& node, const std::string& path, std::uint32_t index) {
  Section section(errors_, node, path);
  const Node* model = section.require_key("model");
  if (model == nullptr || !apply_model(*model, section.key_path("model"), index)) return;
  read_gpu_keys(section, index);
  section.report_unknown_keys();
}

void MachineReader::read_gpu_list(const Node& list, const std::string& path) {
  if (list.items.empty() || list.items.size() > kMaxGpus) {
    errors_.report_error(list, path, "expected 1 to " + std::to_string(kMaxGpus) + " GPUs");
    return;
  }
  machine_->gpu_count = static_cast<std::uint32_t>(list.items.size());
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    read_one_gpu(list.items[i], path + "[" + std::to_string(i) + "]", i);
  }
}

void MachineReader::read_addresses(Section& section) {
  const Node* node = section.find_key("pci");
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kSequence || node->items.size() != machine_->gpu_count) {
    errors_.report_error(*node, section.key_path("pci"),
                         "expected a list of " + std::to_string(machine_->gpu_count) + " PCI addresses");
    return;
  }
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    const auto address =
        read_pci_address(errors_, node->items[i], section.key_path("pci") + "[" + std::to_string(i) + "]");
    if (address) machine_->gpus[i].pci = *address;
  }
}

void MachineReader::read_numbers(Section& section, const std::string& key, Range range,
                                 std::int32_t Gpu::* member) {
  const Node* node = section.find_key(key);
  if (node == nullptr) return;
  const auto numbers = read_integers(errors_, *node, section.key_path(key), range);
  if (errors_.has_error()) return;
  if (numbers.size() != machine_->gpu_count) {
    errors_.report_error(*node, section.key_path(key),
                         "expected " + std::to_string(machine_->gpu_count) + " numbers, one per GPU");
    return;
  }
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i)
    machine_->gpus[i].*member = static_cast<std::int32_t>(numbers[i]);
}

// Parses `each: {3: {...}}`: overrides of single GPUs.
void MachineReader::read_overrides(Section& section) {
  const Node* node = section.find_key("each");
  if (node == nullptr) return;
  const Section each(errors_, *node, section.key_path("each"));
  for (const auto& entry : node->entries) {
    const auto index = text::parse_unsigned(entry.key);
    if (!index || *index >= machine_->gpu_count) {
      errors_.report_error(entry.position, each.key_path(entry.key),
                           "no GPU with this index: 0 to " + std::to_string(machine_->gpu_count - 1));
      return;
    }
    Section own(errors_, entry.value, each.key_path(entry.key));
    const auto at = static_cast<std::uint32_t>(*index);
    if (const Node* model = own.find_key("model")) {
      const Gpu before = machine_->gpus[at];
      if (!apply_model(*model, own.key_path("model"), at)) return;
      Gpu& gpu = machine_->gpus[at];
      gpu.pci = before.pci;
      gpu.numa_node = before.numa_node;
      gpu.memory_numa_node = before.memory_numa_node;
    }
    read_gpu_keys(own, at);
    own.report_unknown_keys();
  }
}

void MachineReader::read_compact_gpus(const Node& node, const std::string& path) {
  Section section(errors_, node, path);
  section.require_key("count");
  const Node* model = section.require_key("model");
  section.integer_key("count", machine_->gpu_count, {1, static_cast<std::int64_t>(kMaxGpus)});
  if (errors_.has_error()) return;
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    if (!apply_model(*model, section.key_path("model"), i)) return;
  }
  read_addresses(section);
  read_numbers(section, "numa", {-1, kMaxNuma}, &Gpu::numa_node);
  read_numbers(section, "memory_numa", {0, 1023}, &Gpu::memory_numa_node);
  if (!errors_.has_error()) read_overrides(section);
  section.report_unknown_keys();
}

// Reports GPUs with the same address, minor or UUID.
void MachineReader::check_gpus(const Node& node) {
  for (std::uint32_t b = 0; b < machine_->gpu_count; ++b) {
    const Gpu& two = machine_->gpus[b];
    for (std::uint32_t a = 0; a < b; ++a) {
      const Gpu& one = machine_->gpus[a];
      const auto place = [](const PciAddress& p) {
        return std::tuple(p.domain, p.bus, p.device, p.function);
      };
      std::string same;
      if (place(one.pci) == place(two.pci)) same = "PCI address";
      if (one.minor == two.minor) same = "minor number";
      if (std::string_view(one.uuid) == two.uuid) same = "UUID";
      if (same.empty()) continue;
      errors_.report_error(node, "gpus",
                           "GPUs " + std::to_string(a) + " and " + std::to_string(b) + " have one " + same);
      return;
    }
  }
}

void MachineReader::read_machine_gpus(Section& section) {
  const Node* node = section.require_key("gpus");
  if (node == nullptr || errors_.has_error()) return;
  if (node->kind == Node::Kind::kSequence)
    read_gpu_list(*node, section.key_path("gpus"));
  else
    read_compact_gpus(*node, section.key_path("gpus"));
  if (errors_.has_error()) return;
  check_gpus(*node);
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    Gpu& gpu = machine_->gpus[i];
    gpu.board_id = (gpu.pci.domain << 16 | static_cast<std::uint32_t>(gpu.pci.bus) << 8) & 0xffffffffU;
    complete_gpu(gpu);
  }
}

// Parses "0-19,40-59" into bits. Returns false for an invalid list.
bool set_cpus(const std::string& list, std::uint64_t (&words)[kMaxCpuWords]) {
  for (const std::string& part : text::split(list, ',')) {
    const auto ends = text::split(part, '-');
    if (ends.empty() || ends.size() > 2) return false;
    const auto first = text::parse_unsigned(ends.front());
    const auto last = text::parse_unsigned(ends.back());
    if (!first || !last || *last < *first || *last >= kMaxCpuWords * 64) return false;
    for (std::uint64_t cpu = *first; cpu <= *last; ++cpu) words[cpu / 64] |= std::uint64_t{1} << cpu % 64;
  }
  return !list.empty();
}

void MachineReader::read_cpus(Section& section) {
  const Node* node = section.find_key("numa_cpus");
  if (node == nullptr) return;
  const Section nodes(errors_, *node, section.key_path("numa_cpus"));
  for (const auto& entry : node->entries) {
    const auto numa = text::parse_unsigned(entry.key);
    std::uint64_t words[kMaxCpuWords] = {};
    if (!numa || *numa > static_cast<std::uint64_t>(kMaxNuma)) {
      errors_.report_error(entry.position, nodes.key_path(entry.key), "invalid NUMA node: expected 0 to 63");
    } else if (entry.value.kind != Node::Kind::kScalar || !set_cpus(entry.value.scalar, words)) {
      errors_.report_error(entry.value, nodes.key_path(entry.key),
                           "expected a list of CPUs below 1024, like \"0-19,40-59\"");
    } else {
      for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
        Gpu& gpu = machine_->gpus[i];
        if (gpu.numa_node == static_cast<std::int32_t>(*numa))
          std::copy(std::begin(words), std::end(words), gpu.cpu_affinity);
      }
    }
  }
}

// Parses the 16 bytes of "9c6f5af3-53bf-49b5-a436-b66766c413c3".
bool set_cluster(const std::string& uuid, std::uint8_t (&bytes)[16]) {
  std::string digits;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if ((uuid[i] == '-') != dash) return false;
    if (!dash) digits += uuid[i];
  }
  if (digits.size() != 32) return false;
  for (std::size_t i = 0; i < 16; ++i) {
    const char* begin = digits.data() + i * 2;
    const auto [end, error] = std::from_chars(begin, begin + 2, bytes[i], 16);
    if (error != std::errc() || end != begin + 2) return false;
  }
  return true;
}

void MachineReader::read_fabric(Section& section) {
  const Node* node = section.find_key("fabric");
  if (node == nullptr) return;
  Fabric fabric{};
  Section own(errors_, *node, section.key_path("fabric"));
  fabric.state = kFabricCompleted;
  fabric.health_summary = kFabricHealthy;
  own.choice_key("state", fabric.state, {"not-started", "in-progress", "completed"}, {1, 2, 3});
  own.integer_key("status", fabric.status, {0, 999});
  own.integer_key("clique_id", fabric.clique_id, {0, 0xffffffffLL});
  if (const Node* uuid = own.find_key("cluster_uuid")) {
    if (uuid->kind != Node::Kind::kScalar || !set_cluster(uuid->scalar, fabric.cluster_uuid)) {
      errors_.report_error(*uuid, own.key_path("cluster_uuid"),
                           "expected a UUID like 9c6f5af3-53bf-49b5-a436-b66766c413c3");
    }
  }
  own.report_unknown_keys();
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) machine_->gpus[i].fabric = fabric;
}

std::unique_ptr<Machine> MachineReader::read_machine(const Node& root) {
  Section section(errors_, root, "");
  for (const char* key : {"version", "name", "gpus"}) section.require_key(key);
  std::int64_t version = kVersion;
  section.integer_key("version", version, {kVersion, kVersion});
  section.text_key("name", machine_->name);
  set_text(machine_->product, machine_->name);
  section.text_key("product", machine_->product);
  read_driver(section);
  read_inline_models(section);
  if (!errors_.has_error()) read_machine_gpus(section);
  read_cpus(section);
  read_fabric(section);
  read_topology(errors_, section, *machine_);
  read_links(errors_, section, *machine_, kinds_);
  section.report_unknown_keys();
  return std::move(machine_);
}

}  // namespace

Result<std::unique_ptr<Machine>> parse_machine(std::string_view text, const std::string& file,
                                               const MachineOptions& options) {
  GPULET_TRY_ASSIGN(const config::yaml::Document document, config::yaml::parse_yaml(text, file));
  FirstError problem(file);
  for (const auto& twice : document.duplicates)
    problem.report_error(twice.position, twice.key, "duplicate key");
  if (document.second)
    problem.report_error(*document.second, "", "a second document: expected one machine per file");
  auto machine = MachineReader(problem, options).read_machine(document.root);
  GPULET_TRY(problem.to_status());
  return machine;
}

Result<std::unique_ptr<Machine>> load_machine(const std::string& name_or_path,
                                              const MachineOptions& options) {
  std::vector<std::string> names;
  for (const BuiltIn& machine : built_in_machines()) {
    if (machine.name == name_or_path) return parse_machine(machine.text, name_or_path + ".yaml", options);
    names.emplace_back(machine.name);
  }
  const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".yaml") ||
                       name_or_path.ends_with(".yml");
  if (!is_path) {
    const auto nearest = text::nearest(name_or_path, names);
    return fail(Code::kNotFound,
                nearest ? "no such machine, did you mean '" + *nearest + "'?"
                        : "no such machine: a YAML file, or one of " + text::join(names, ", "),
                name_or_path);
  }
  GPULET_TRY_ASSIGN(const std::string text, read_file(name_or_path, config::yaml::kMaxTextBytes));
  return parse_machine(text, name_or_path, options);
}

}  // namespace gpulet::sim
