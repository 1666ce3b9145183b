#include "metrics/dcgm_page.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "metrics/xid_messages.h"

namespace gpulet::metrics {
namespace {

using Named = std::vector<std::pair<std::string, std::string>>;

constexpr double kRoundingError = 1e-9;  // of a sum of percentages

std::string number_text(double value) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

std::string field_text(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* whole = std::get_if<std::uint64_t>(&value)) return std::to_string(*whole);
  return number_text(std::get<double>(value));
}

double number_of(const Value& value) {
  if (const auto* whole = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*whole);
  const auto* number = std::get_if<double>(&value);
  return number == nullptr ? 0 : *number;
}

// A GPU, or one of its GPU instances.
struct Entity {
  const GpuSample& gpu;
  const InstanceSample* instance = nullptr;

  const Value* value(Field field) const {
    if (instance != nullptr) {
      const auto own = instance->values.find(field);
      if (own != instance->values.end()) return &own->second;
      // A value per instance is not the GPU's.
      if (field_info(field).of_instance) return nullptr;
    }
    const auto found = gpu.values.find(field);
    return found == gpu.values.end() ? nullptr : &found->second;
  }
  const LastXid& last_xid() const { return instance == nullptr ? gpu.xid : instance->xid; }
  const EventCounts& event_counts() const { return instance == nullptr ? gpu.counts : instance->counts; }
};

// A Pod of an entity, and the share of the series.
struct Viewer {
  const PodShare* use = nullptr;  // null: no Pod
  std::string share;
};

// The devices of an entity: the GPU, or the MIG devices of one GPU instance, as one.
struct EntityUse {
  std::vector<PodShare> pods;
  bool known = true, busy_known = true;
};

EntityUse use_of(const Entity& entity, const Attribution& uses) {
  EntityUse all;
  const auto add = [&](const DeviceUuid& device) {
    const auto found = uses.devices.find(device);
    if (found == uses.devices.end()) return;
    all.known = all.known && found->second.is_known;
    all.busy_known = all.busy_known && found->second.is_busy_known;
    for (const auto& pod : found->second.pods) {
      const auto same = std::find_if(all.pods.begin(), all.pods.end(), [&](const PodShare& other) {
        return other.holder.pod == pod.holder.pod;
      });
      if (same == all.pods.end()) {
        all.pods.push_back(pod);
      } else {
        same->memory.value += pod.memory.value;
        same->busy += pod.busy;
      }
    }
  };
  if (entity.instance == nullptr) {
    add(entity.gpu.uuid);
  } else {
    for (const auto& device : entity.instance->devices) add(device.uuid);
  }
  std::sort(all.pods.begin(), all.pods.end(),
            [](const PodShare& a, const PodShare& b) { return a.holder.pod < b.holder.pod; });
  return all;
}

class DcgmPage {
 public:
  DcgmPage(Exposition& page, const Sample& sample, const Counters& counters, const Attribution& uses,
           const PageOptions& options)
      : page_(page), sample_(sample), counters_(counters), uses_(uses), options_(options) {}

  void add_gpus() {
    for (const auto& gpu : sample_.gpus) {
      if (gpu.error) continue;
      if (options_.device_filter.includes_gpu(gpu.index, gpu.mig)) add_entity({gpu, nullptr});
      if (!gpu.mig) continue;
      for (const auto& instance : gpu.instances) {
        if (options_.device_filter.includes_instance(instance.id)) add_entity({gpu, &instance});
      }
    }
  }

 private:
  void add_entity(const Entity& entity) {
    const auto use = use_of(entity, uses_);
    const Named device = device_labels(entity);
    const Named texts = text_labels(entity);
    const bool shared = use.pods.size() > 1;
    // The Pods of series that describe the whole device.
    std::vector<Viewer> whole = {{}};
    if (use.pods.size() == 1) whole[0].use = &use.pods[0];
    if (shared && options_.virtual_gpus) {
      whole.clear();
      for (const auto& pod : use.pods) {
        if (pod.holder.shares.empty()) whole.push_back({&pod, ""});
        for (const auto& share : pod.holder.shares) whole.push_back({&pod, share});
      }
    }
    const auto labels = [&](const Viewer& viewer, const Named& own_labels, const Named& own_attributes) {
      return labels_of(device, texts, viewer, own_labels, own_attributes);
    };
    std::vector<Exposition::Labels> whole_labels;
    for (const auto& viewer : whole) whole_labels.push_back(labels(viewer, {}, {}));

    for (const auto& counter : counters_.all) {
      if (counter.type == Type::kLabel) continue;
      if (counter.link) {
        add_link_value(entity.gpu, counter, whole_labels);
        continue;
      }
      const bool divided = (counter.field == Field::kFbUsed && use.known) ||
                           (counter.field == Field::kGpuUtil && use.busy_known) ||
                           (counter.field == Field::kGraphicsActive && use.busy_known);
      const Value* value = entity.value(counter.field);
      if (add_events(entity, counter, whole, labels)) continue;
      if (value == nullptr || std::holds_alternative<std::string>(*value)) continue;
      if (divided && shared) {
        add_divided(counter, *value, use, entity.value(Field::kGpuUtil), labels);
        continue;
      }
      for (const auto& series : whole_labels) add_value(counter, series, *value);
    }
  }

  // Links belong to the GPU, also in MIG mode.
  void add_link_value(const GpuSample& gpu, const Counter& counter,
                      const std::vector<Exposition::Labels>& whole_labels) {
    const auto link = std::ranges::find(gpu.links, *counter.link, &LinkSample::index);
    if (link == gpu.links.end()) return;
    const auto value = link->values.find(counter.field);
    if (value == link->values.end()) return;
    for (const auto& series : whole_labels) add_value(counter, series, value->second);
  }

  // Adds counters with additional labels. Returns false for other counters.
  template <class LabelsOf>
  bool add_events(const Entity& entity, const Counter& counter, const std::vector<Viewer>& whole,
                  const LabelsOf& labels) {
    const auto each = [&](const Named& own_labels, const Named& own_attributes, std::uint64_t value) {
      for (const auto& viewer : whole) add_value(counter, labels(viewer, own_labels, own_attributes), value);
    };
    const auto window = [](std::chrono::milliseconds time) { return std::to_string(time.count()); };
    switch (counter.field) {
      case Field::kXid: {
        const auto& xid = entity.last_xid();
        Named attributes{{"err_code", std::to_string(xid.code)},
                         {"err_msg", std::string(dcgm_xid_message(xid.code))}};
        if (!xid.description.empty()) attributes.emplace_back("xid_description", xid.description);
        each({}, attributes, xid.code);
        return true;
      }
      case Field::kXidCount:
        for (const auto& [xid, count] : entity.event_counts().xids)
          each({{"window_size_in_ms", window(sample_.windows.xids)}, {"xid", std::to_string(xid)}}, {},
               count);
        return true;
      case Field::kClockEventCount:
        for (const auto& [event, count] : entity.event_counts().clock_events)
          each({{"clock_event", event}, {"window_size_in_ms", window(sample_.windows.clock_events)}}, {},
               count);
        return true;
      case Field::kPeerToPeer:
        for (const auto& [peer, status] : entity.gpu.peers)
          each({{"link_status", status}, {"peer_gpu", std::to_string(peer)}}, {}, status == "OK" ? 1 : 0);
        return true;
      default:
        return false;
    }
  }

  // One series per Pod; the rest has no Pod. `util`: the GPU's use in percent, as that of the Pods.
  template <class LabelsOf>
  void add_divided(const Counter& counter, const Value& value, const EntityUse& use, const Value* util,
                   const LabelsOf& labels) {
    if (counter.field == Field::kFbUsed) {
      std::uint64_t rest = static_cast<std::uint64_t>(number_of(value));
      for (const auto& pod : use.pods) {
        const std::uint64_t own = std::min(rest, pod.memory.mebibytes());
        rest -= own;
        add_value(counter, labels({&pod, ""}, {}, {}), own);
      }
      return add_value(counter, labels({}, {}, {}), rest);
    }
    double rest = number_of(value), scale = 1;
    if (counter.field == Field::kGraphicsActive) {
      const double percent = util == nullptr ? 0 : number_of(*util);
      scale = percent > 0 ? rest / percent : 0;
    }
    for (const auto& pod : use.pods) {
      const double own = std::min(rest, pod.busy * scale);
      rest -= own;
      add_value(counter, labels({&pod, ""}, {}, {}), own);
    }
    add_value(counter, labels({}, {}, {}), rest < kRoundingError ? 0.0 : rest);
  }

  void add_value(const Counter& counter, const Exposition::Labels& labels, const Value& value) {
    const auto type = counter.type == Type::kCounter ? Exposition::Type::kCounter : Exposition::Type::kGauge;
    if (const auto* whole = std::get_if<std::uint64_t>(&value)) {
      page_.add_sample(counter.name, type, counter.help, labels, *whole);
    } else if (const auto* number = std::get_if<double>(&value);
               number != nullptr && std::isfinite(*number)) {
      page_.add_sample(counter.name, type, counter.help, labels, *number);
    }
  }

  Named device_labels(const Entity& entity) const {
    const auto& gpu = entity.gpu;
    std::string model = gpu.model;
    if (options_.replace_blanks) std::replace(model.begin(), model.end(), ' ', '-');
    Named labels = {{"gpu", std::to_string(gpu.index)},
                    {options_.old_namespace ? "uuid" : "UUID", gpu.uuid.str()},
                    {"pci_bus_id", gpu.pci_bus_id},
                    {"device", "nvidia" + std::to_string(gpu.index)},
                    {"modelName", model}};
    if (entity.instance != nullptr) {
      labels.emplace_back("GPU_I_PROFILE", entity.instance->profile);
      labels.emplace_back("GPU_I_ID", std::to_string(entity.instance->id));
    }
    if (options_.host_label != HostLabel::kNone && !options_.hostname.empty())
      labels.emplace_back(options_.host_label == HostLabel::kLower ? "hostname" : "Hostname",
                          options_.hostname);
    return labels;
  }

  // Counters of type label.
  Named text_labels(const Entity& entity) const {
    Named labels;
    for (const auto& counter : counters_.all) {
      if (counter.type != Type::kLabel || counter.link) continue;
      const Value* value = entity.value(counter.field);
      if (value != nullptr) labels.emplace_back(counter.name, field_text(*value));
    }
    return labels;
  }

  Named pod_attributes(const Viewer& viewer) const {
    Named attributes;
    if (viewer.use == nullptr) return attributes;
    const auto& holder = viewer.use->holder;
    const bool old = options_.old_namespace;
    // With several containers, the container is unknown.
    if (holder.containers.size() == 1)
      attributes.emplace_back(old ? "container_name" : "container", holder.containers[0]);
    attributes.emplace_back(old ? "pod_namespace" : "namespace", holder.pod.name_space);
    attributes.emplace_back(old ? "pod_name" : "pod", holder.pod.name);
    const auto facts = uses_.pods.find(holder.pod);
    if (facts != uses_.pods.end() && !facts->second.uid.empty())
      attributes.emplace_back("pod_uid", facts->second.uid);
    if (!viewer.share.empty()) attributes.emplace_back("vgpu", viewer.share);
    return attributes;
  }

  Exposition::Labels labels_of(const Named& device, const Named& texts, const Viewer& viewer,
                               const Named& own_labels, const Named& own_attributes) const {
    Named attributes = pod_attributes(viewer);
    attributes.insert(attributes.end(), own_attributes.begin(), own_attributes.end());
    std::sort(attributes.begin(), attributes.end());
    Named labels = texts;
    labels.insert(labels.end(), own_labels.begin(), own_labels.end());
    const auto facts = viewer.use == nullptr ? uses_.pods.end() : uses_.pods.find(viewer.use->holder.pod);
    if (facts != uses_.pods.end()) {
      // A Pod's label must not hide one of the metric's.
      const auto taken = [&](const std::string& name) {
        const auto same = [&](const auto& label) { return label.first == name; };
        return std::any_of(device.begin(), device.end(), same) ||
               std::any_of(labels.begin(), labels.end(), same) ||
               std::any_of(attributes.begin(), attributes.end(), same);
      };
      for (const auto& label : facts->second.labels) {
        if (!taken(label.first)) labels.push_back(label);
      }
    }
    std::sort(labels.begin(), labels.end());
    std::vector<Exposition::Label> all;
    for (const Named* group :
         {&device, static_cast<const Named*>(&labels), static_cast<const Named*>(&attributes)}) {
      for (const auto& [name, value] : *group) all.emplace_back(name, value);
    }
    return Exposition::Labels(all);
  }

  Exposition& page_;
  const Sample& sample_;
  const Counters& counters_;
  const Attribution& uses_;
  const PageOptions& options_;
};

}  // namespace

void add_dcgm_metrics(Exposition& page, const Sample& sample, const Counters& counters,
                      const Attribution& uses, const PageOptions& options) {
  DcgmPage(page, sample, counters, uses, options).add_gpus();
}

}  // namespace gpulet::metrics
