#include "health/judge.h"

#include <optional>

#include "health/xid_catalogue.h"

namespace gpulet::health {

bool Judge::on_xid(const XidEvent& event) {
  if (filter_.ignored(event.xid)) return false;
  // A compute instance without its GPU instance says nothing of where: the whole GPU, then.
  Key key{event.gpu, event.gpu_instance, event.compute_instance};
  if (key.gpu_instance == kNoInstance) key.compute_instance = kNoInstance;
  for (const Key& wider : {Key{key.gpu}, Key{key.gpu, key.gpu_instance}, key}) {
    if (marks_.contains(wider)) return false;
  }
  marks_.emplace(std::move(key), describe_xid(event.xid));
  return true;
}

bool Judge::on_probe(const Probe& probe) {
  if (!probe.answers || probe.recovery_action.value_or(0) != 0) return false;
  return std::erase_if(marks_, [&](const auto& mark) { return mark.first.gpu == probe.gpu; }) != 0;
}

std::vector<DeviceUuid> Judge::to_probe() const {
  std::vector<DeviceUuid> gpus;
  for (const auto& [key, why] : marks_) {
    if (gpus.empty() || gpus.back() != key.gpu) gpus.push_back(key.gpu);
  }
  return gpus;
}

inventory::Snapshot Judge::judge(inventory::Snapshot snapshot) const {
  const auto mark = [&](const Key& key) -> const std::string* {
    const auto found = marks_.find(key);
    return found == marks_.end() ? nullptr : &found->second;
  };
  for (auto& gpu : snapshot.gpus) {
    const std::string* why = mark({gpu.uuid});
    // A mark on an instance of a GPU that is no longer cut up is a mark on what it is now.
    if (!why && !gpu.mig_enabled) {
      const auto any = marks_.lower_bound(Key{gpu.uuid, 0, 0});
      if (any != marks_.end() && any->first.gpu == gpu.uuid) why = &any->second;
    }
    gpu.health = {};
    if (gpu.unreadable) {
      gpu.health = {false, why ? *why : "cannot be read: " + gpu.unreadable->message()};
    } else if (why) {
      gpu.health = {false, *why};
    }
    for (auto& mig : gpu.mig_devices) {
      mig.health = gpu.health;
      if (!mig.health.healthy) continue;
      for (const Key& key :
           {Key{gpu.uuid, mig.gpu_instance}, Key{gpu.uuid, mig.gpu_instance, mig.compute_instance}}) {
        if (const auto* reason = mark(key); reason && mig.health.healthy) mig.health = {false, *reason};
      }
    }
  }
  return snapshot;
}

}  // namespace gpulet::health
