#include "agent/mig_drain.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::agent {
namespace {

using Severity = Reporter::Severity;
using Kind = cluster::EvictionNews::Kind;

constexpr std::string_view kPod = "Pod ", kOn = ", on ";

// "Pod default/train" and "1g.10gb at 5" of "Pod default/train, on 1g.10gb at 5".
std::pair<std::string, std::string> parts_of(const std::string& blocker) {
  const auto at = blocker.rfind(kOn);
  if (at == std::string::npos) return {blocker, ""};
  return {blocker.substr(0, at), blocker.substr(at + kOn.size())};
}

}  // namespace

std::vector<std::string> pods_in_the_way(const mig::Plan& plan, const mig::Pods& pods) {
  std::set<std::string> known, names;
  for (const auto& [device, pod] : pods) known.insert(pod);
  for (const auto& blocker : plan.blocked_by) {
    const std::string who = parts_of(blocker).first;
    if (who.starts_with(kPod) && known.contains(who.substr(kPod.size())))
      names.insert(who.substr(kPod.size()));
  }
  return {names.begin(), names.end()};
}

bool drain_would_do(const mig::Plan& plan) {
  std::map<std::string, bool> held_by_pod;
  for (const auto& blocker : plan.blocked_by) {
    const auto [who, where] = parts_of(blocker);
    auto& pod = held_by_pod[where];
    pod = pod || who.starts_with(kPod);
  }
  return std::ranges::all_of(held_by_pod, [](const auto& entry) { return entry.second; });
}

MigDrain::MigDrain(const MigPorts& ports, std::string gpu, std::string why, Report report)
    : ports_(ports),
      gpu_(std::move(gpu)),
      why_(std::move(why)),
      report_(std::move(report)),
      deadline_(ports.loop.now() + kMigDrainLimit) {}

std::optional<std::string> MigDrain::step(const std::vector<std::string>& pods) {
  const Time now = ports_.loop.now();
  std::vector<std::string> fresh;
  for (const auto& pod : pods) {
    if (!asked_.contains(pod)) fresh.push_back(pod);
  }
  if (!fresh.empty() && !useless_) ask(std::move(fresh));
  if (useless_) return useless_;
  if (!pods.empty()) {
    empty_since_.reset();
  } else if (!empty_since_) {
    empty_since_ = now;
  }
  if (empty_since_ && now - *empty_since_ >= kMigLinger) {
    return "its Pods are gone, and processes that are no Pod's are left alone";
  }
  if (now < deadline_) return std::nullopt;
  std::string late =
      "drained for " +
      std::to_string(std::chrono::duration_cast<std::chrono::minutes>(kMigDrainLimit).count()) +
      " minutes, and not gone: " + (pods.empty() ? "processes" : text::join(pods, ", "));
  for (const auto& pod : pods) {
    if (const auto waiting = waiting_.find(pod); waiting != waiting_.end())
      late += "; " + pod + ": " + waiting->second;
  }
  return late;
}

void MigDrain::ask(std::vector<std::string> pods) {
  asked_.insert(pods.begin(), pods.end());
  const std::string names = text::join(pods, ", ");
  auto eviction =
      ports_.evict ? ports_.evict(std::move(pods), [this](const auto& news) { on_news(news); }) : nullptr;
  if (!eviction) {
    useless_ = "no API server is known that could evict " + names;
    return;
  }
  evictions_.push_back(std::move(eviction));
  report_(Severity::kNormal, "MigDraining", gpu_ + ": asking to leave: " + names + " (" + why_ + ")");
}

void MigDrain::on_news(const cluster::EvictionNews& news) {
  waiting_.erase(news.pod);
  if (news.kind == Kind::kRefused) useless_ = "Pod " + news.pod + " cannot be evicted: " + news.why;
  if (news.kind != Kind::kWaiting) return;
  waiting_[news.pod] = news.why;
  report_(Severity::kWarning, "MigDrainWaits",
          gpu_ + ": Pod " + news.pod + " is not evicted yet: " + news.why + "; tried again");
}

}  // namespace gpulet::agent
