#include "health/judge.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "health/xid_catalogue.h"

namespace gpulet::health {
namespace {

// Applications' faults, that say nothing of the GPU. Source: NVIDIA's plugin, internal/rm/health.go.
constexpr std::uint64_t kIgnoredByDefault[] = {13, 31, 43, 45, 68, 109};

struct Tokens {
  bool all = false;
  std::set<std::uint64_t> xids;
};

Tokens parse(const std::string& list, const char* variable, std::vector<std::string>& warnings) {
  Tokens tokens;
  for (const auto& part : text::split(list, ',')) {
    const std::string token = text::lower(text::trim(part));
    if (token.empty()) continue;
    if (token == "all" || token == "xids") {
      tokens.all = true;
    } else if (const auto xid = text::parse_unsigned(token)) {
      tokens.xids.insert(*xid);
    } else {
      warnings.push_back(std::string(variable) + ": '" + token.substr(0, 64) +
                         "' is neither an XID's number nor all or xids: it is passed over");
    }
  }
  return tokens;
}

}  // namespace

XidFilter::XidFilter(const std::string& disable, const std::string& enable) {
  auto disabled = parse(disable, "DP_DISABLE_HEALTHCHECKS", warnings_);
  auto enabled = parse(enable, "DP_ENABLE_HEALTHCHECKS", warnings_);
  all_disabled_ = disabled.all;
  all_enabled_ = enabled.all;
  disabled_ = std::move(disabled.xids);
  enabled_ = std::move(enabled.xids);
  off_ = all_disabled_ && !all_enabled_ && enabled_.empty();
}

bool XidFilter::ignored(std::uint64_t xid) const {
  if (all_enabled_ || enabled_.contains(xid)) return false;
  return all_disabled_ || disabled_.contains(xid) || std::ranges::count(kIgnoredByDefault, xid) != 0;
}

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
