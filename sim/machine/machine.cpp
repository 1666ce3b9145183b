#include "sim/machine/machine.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "sim/machine/links.h"
#include "sim/machine/model.h"

namespace gpulet::sim {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxNuma = 63;
constexpr std::uint32_t kFirstRenderMinor = 128;
constexpr std::uint8_t kFabricHealthy = 1;    // NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
constexpr std::string_view kDefaultDriver = "570.124.06";
constexpr std::int32_t kDefaultCuda = 12080;

// Reads one machine. What its members say of GPUs is by index.
class Reader {
 public:
  Reader(Problem& problem, const MachineOptions& options) : problem_(problem), options_(options) {}
  std::unique_ptr<Machine> read(const Node& root);

 private:
  void read_driver(Section& section);
  void read_own_models(Section& section);
  bool apply_model(const Node& name, const std::string& path, std::uint32_t gpu);
  void read_gpus(Section& section);
  void read_gpu_list(const Node& list, const std::string& path);
  void read_compact_gpus(const Node& node, const std::string& path);
  void read_one_gpu(const Node& node, const std::string& path, std::uint32_t index);
  void read_own_keys(Section& section, std::uint32_t index);
  void read_overrides(Section& section);
  void read_addresses(Section& section);
  void read_numbers(Section& section, const std::string& key, Range range, std::int32_t Gpu::* member);
  void set_identity(std::uint32_t index);
  void check_gpus(const Node& node);
  void read_cpus(Section& section);
  void read_fabric(Section& section);

  Problem& problem_;
  const MachineOptions& options_;
  std::unique_ptr<Machine> machine_ = std::make_unique<Machine>();
  NvLinkKinds kinds_{};
  std::map<std::string, const Node*> own_models_;
};

// The hexadecimal digits of a UUID as a number below `limit`.
std::uint64_t number_of(const std::string& uuid, std::uint64_t limit) {
  std::uint64_t value = 0;
  for (const char c : uuid) {
    if (c >= '0' && c <= '9') value = value * 16 + static_cast<std::uint64_t>(c - '0');
    if (c >= 'a' && c <= 'f') value = value * 16 + static_cast<std::uint64_t>(c - 'a' + 10);
  }
  return value % limit;
}

void Reader::set_identity(std::uint32_t index) {
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

void Reader::read_driver(Section& section) {
  Driver& driver = machine_->driver;
  set_text(driver.version, kDefaultDriver);
  driver.cuda_version = kDefaultCuda;
  driver.loaded = 1;
  driver.generation = 1;
  if (const Node* node = section.take("driver")) {
    Section own(problem_, *node, section.path("driver"));
    own.text("version", driver.version);
    own.text("nvml_version", driver.nvml_version);
    if (const Node* cuda = own.take("cuda")) {
      const auto parts = text::split(cuda->scalar, '.');
      const auto major = parts.size() == 2 ? text::parse_unsigned(parts[0]) : std::nullopt;
      const auto minor = parts.size() == 2 ? text::parse_unsigned(parts[1]) : std::nullopt;
      if (!major || !minor || *major > 99 || *minor > 99)
        problem_.report(*cuda, own.path("cuda"), "needs a text like \"12.8\"");
      else
        driver.cuda_version = static_cast<std::int32_t>(*major * 1000 + *minor * 10);
    }
    own.finish();
  }
  if (driver.nvml_version[0] == '\0') {
    set_text(driver.nvml_version, std::to_string(driver.cuda_version / 1000) + "." + driver.version);
  }
}

void Reader::read_own_models(Section& section) {
  const Node* node = section.take("models");
  if (node == nullptr) return;
  const Section models(problem_, *node, section.path("models"));
  for (const auto& entry : node->entries) {
    // Read here too, so that a model that no GPU uses is checked all the same.
    Gpu gpu = blank_gpu();
    NvLinkKind kind;
    Section model(problem_, entry.value, models.path(entry.key));
    for (const char* key : {"name", "architecture", "compute_capability", "memory"}) model.need(key);
    read_model(problem_, model, gpu, kind);
    model.finish();
    own_models_[entry.key] = &entry.value;
  }
}

bool Reader::apply_model(const Node& name, const std::string& path, std::uint32_t index) {
  Gpu& gpu = machine_->gpus[index];
  gpu = blank_gpu();
  kinds_[index] = {};
  set_identity(index);
  if (const auto own = own_models_.find(name.scalar); own != own_models_.end()) {
    Section model(problem_, *own->second, "models." + name.scalar);
    read_model(problem_, model, gpu, kinds_[index]);
    return !problem_.any();
  }
  std::vector<std::string> known;
  for (const auto& entry : own_models_) known.push_back(entry.first);
  for (const BuiltIn& model : built_in_models()) {
    known.emplace_back(model.name);
    if (model.name != name.scalar) continue;
    const std::string file = std::string(model.name) + ".yaml";
    const auto document = config::yaml::parse(model.text, file);
    if (!document) {
      problem_.report(name, path, document.error().text());
      return false;
    }
    const std::string before = problem_.swap_file(file);
    Section section(problem_, document->root, "");
    read_model(problem_, section, gpu, kinds_[index]);
    section.finish();
    problem_.swap_file(before);
    return !problem_.any();
  }
  const auto nearest = text::nearest(name.scalar, known);
  problem_.report(
      name, path,
      "no model '" + name.scalar.substr(0, 40) + "'" +
          (nearest ? ", did you mean '" + *nearest + "'?" : ": one of " + text::join(known, ", ")));
  return false;
}

void Reader::read_own_keys(Section& section, std::uint32_t index) {
  Gpu& gpu = machine_->gpus[index];
  section.text("uuid", gpu.uuid);
  section.text("serial", gpu.serial);
  section.integer("minor", gpu.minor, {0, 254});
  section.integer("module_id", gpu.module_id, {0, 64});
  section.integer("numa", gpu.numa_node, {-1, kMaxNuma});
  section.integer("memory_numa", gpu.memory_numa_node, {0, 1023});
  if (const Node* node = section.take("pci")) {
    if (const auto address = read_pci_address(problem_, *node, section.path("pci"))) gpu.pci = *address;
  }
  read_model(problem_, section, gpu, kinds_[index]);
}

void Reader::read_one_gpu(const Node& node, const std::string& path, std::uint32_t index) {
  Section section(problem_, node, path);
  const Node* model = section.need("model");
  if (model == nullptr || !apply_model(*model, section.path("model"), index)) return;
  read_own_keys(section, index);
  section.finish();
}

void Reader::read_gpu_list(const Node& list, const std::string& path) {
  if (list.items.empty() || list.items.size() > kMaxGpus) {
    problem_.report(list, path, "needs 1 to " + std::to_string(kMaxGpus) + " GPUs");
    return;
  }
  machine_->gpu_count = static_cast<std::uint32_t>(list.items.size());
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    read_one_gpu(list.items[i], path + "[" + std::to_string(i) + "]", i);
  }
}

void Reader::read_addresses(Section& section) {
  const Node* node = section.take("pci");
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kSequence || node->items.size() != machine_->gpu_count) {
    problem_.report(*node, section.path("pci"),
                    "needs a list of " + std::to_string(machine_->gpu_count) + " PCI addresses");
    return;
  }
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    const auto address =
        read_pci_address(problem_, node->items[i], section.path("pci") + "[" + std::to_string(i) + "]");
    if (address) machine_->gpus[i].pci = *address;
  }
}

void Reader::read_numbers(Section& section, const std::string& key, Range range, std::int32_t Gpu::* member) {
  const Node* node = section.take(key);
  if (node == nullptr) return;
  const auto numbers = read_integers(problem_, *node, section.path(key), range);
  if (problem_.any()) return;
  if (numbers.size() != machine_->gpu_count) {
    problem_.report(*node, section.path(key),
                    "needs " + std::to_string(machine_->gpu_count) + " numbers, one for each GPU");
    return;
  }
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i)
    machine_->gpus[i].*member = static_cast<std::int32_t>(numbers[i]);
}

// `each: {3: {...}}`: what is different about single GPUs.
void Reader::read_overrides(Section& section) {
  const Node* node = section.take("each");
  if (node == nullptr) return;
  const Section each(problem_, *node, section.path("each"));
  for (const auto& entry : node->entries) {
    const auto index = text::parse_unsigned(entry.key);
    if (!index || *index >= machine_->gpu_count) {
      problem_.report(entry.position, each.path(entry.key),
                      "no GPU of that index: 0 to " + std::to_string(machine_->gpu_count - 1));
      return;
    }
    Section own(problem_, entry.value, each.path(entry.key));
    const auto at = static_cast<std::uint32_t>(*index);
    if (const Node* model = own.take("model")) {
      const Gpu before = machine_->gpus[at];
      if (!apply_model(*model, own.path("model"), at)) return;
      Gpu& gpu = machine_->gpus[at];
      gpu.pci = before.pci;
      gpu.numa_node = before.numa_node;
      gpu.memory_numa_node = before.memory_numa_node;
    }
    read_own_keys(own, at);
    own.finish();
  }
}

void Reader::read_compact_gpus(const Node& node, const std::string& path) {
  Section section(problem_, node, path);
  section.need("count");
  const Node* model = section.need("model");
  section.integer("count", machine_->gpu_count, {1, static_cast<std::int64_t>(kMaxGpus)});
  if (problem_.any()) return;
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    if (!apply_model(*model, section.path("model"), i)) return;
  }
  read_addresses(section);
  read_numbers(section, "numa", {-1, kMaxNuma}, &Gpu::numa_node);
  read_numbers(section, "memory_numa", {0, 1023}, &Gpu::memory_numa_node);
  if (!problem_.any()) read_overrides(section);
  section.finish();
}

// Two GPUs of one address, minor or UUID are a slip of the pen.
void Reader::check_gpus(const Node& node) {
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
      problem_.report(node, "gpus",
                      "GPUs " + std::to_string(a) + " and " + std::to_string(b) + " have one " + same);
      return;
    }
  }
}

void Reader::read_gpus(Section& section) {
  const Node* node = section.need("gpus");
  if (node == nullptr || problem_.any()) return;
  if (node->kind == Node::Kind::kSequence)
    read_gpu_list(*node, section.path("gpus"));
  else
    read_compact_gpus(*node, section.path("gpus"));
  if (problem_.any()) return;
  check_gpus(*node);
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
    Gpu& gpu = machine_->gpus[i];
    gpu.board_id = (gpu.pci.domain << 16 | static_cast<std::uint32_t>(gpu.pci.bus) << 8) & 0xffffffffU;
    complete_gpu(gpu);
  }
}

// "0-19,40-59" into bits. False when it is no list of CPUs.
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

void Reader::read_cpus(Section& section) {
  const Node* node = section.take("numa_cpus");
  if (node == nullptr) return;
  const Section nodes(problem_, *node, section.path("numa_cpus"));
  for (const auto& entry : node->entries) {
    const auto numa = text::parse_unsigned(entry.key);
    std::uint64_t words[kMaxCpuWords] = {};
    if (!numa || *numa > static_cast<std::uint64_t>(kMaxNuma)) {
      problem_.report(entry.position, nodes.path(entry.key), "no NUMA node: 0 to 63");
    } else if (entry.value.kind != Node::Kind::kScalar || !set_cpus(entry.value.scalar, words)) {
      problem_.report(entry.value, nodes.path(entry.key),
                      "needs a list of CPUs below 1024, like \"0-19,40-59\"");
    } else {
      for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) {
        Gpu& gpu = machine_->gpus[i];
        if (gpu.numa_node == static_cast<std::int32_t>(*numa))
          std::copy(std::begin(words), std::end(words), gpu.cpu_affinity);
      }
    }
  }
}

// 16 bytes of "9c6f5af3-53bf-49b5-a436-b66766c413c3".
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

void Reader::read_fabric(Section& section) {
  const Node* node = section.take("fabric");
  if (node == nullptr) return;
  Fabric fabric{};
  Section own(problem_, *node, section.path("fabric"));
  fabric.state = kFabricCompleted;
  fabric.health_summary = kFabricHealthy;
  own.choice("state", fabric.state, {"not-started", "in-progress", "completed"}, {1, 2, 3});
  own.integer("status", fabric.status, {0, 999});
  own.integer("clique_id", fabric.clique_id, {0, 0xffffffffLL});
  if (const Node* uuid = own.take("cluster_uuid")) {
    if (uuid->kind != Node::Kind::kScalar || !set_cluster(uuid->scalar, fabric.cluster_uuid)) {
      problem_.report(*uuid, own.path("cluster_uuid"),
                      "needs a UUID like 9c6f5af3-53bf-49b5-a436-b66766c413c3");
    }
  }
  own.finish();
  for (std::uint32_t i = 0; i < machine_->gpu_count; ++i) machine_->gpus[i].fabric = fabric;
}

std::unique_ptr<Machine> Reader::read(const Node& root) {
  Section section(problem_, root, "");
  for (const char* key : {"version", "name", "gpus"}) section.need(key);
  std::int64_t version = kVersion;
  section.integer("version", version, {kVersion, kVersion});
  section.text("name", machine_->name);
  set_text(machine_->product, machine_->name);
  section.text("product", machine_->product);
  read_driver(section);
  read_own_models(section);
  if (!problem_.any()) read_gpus(section);
  read_cpus(section);
  read_fabric(section);
  read_topology(problem_, section, *machine_);
  read_links(problem_, section, *machine_, kinds_);
  section.finish();
  return std::move(machine_);
}

}  // namespace

Result<std::unique_ptr<Machine>> parse_machine(std::string_view text, const std::string& file,
                                               const MachineOptions& options) {
  GPULET_TRY_ASSIGN(const config::yaml::Document document, config::yaml::parse(text, file));
  Problem problem(file);
  for (const auto& twice : document.duplicates) problem.report(twice.position, twice.key, "given twice");
  if (document.second) problem.report(*document.second, "", "a second document: one machine a file");
  auto machine = Reader(problem, options).read(document.root);
  GPULET_TRY(problem.status());
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
