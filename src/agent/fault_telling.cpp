#include "agent/fault_telling.h"

#include "base/log.h"

namespace gpulet::agent {
namespace {

using ConditionStatus = cluster::Condition::Status;

ConditionStatus status_of(const std::optional<bool>& healthy) {
  if (!healthy) return ConditionStatus::kUnknown;
  return *healthy ? ConditionStatus::kTrue : ConditionStatus::kFalse;
}

}  // namespace

FaultTelling::FaultTelling(Loop& loop, const cluster::Access& access, const FaultTellingTiming& timing)
    : status_(cluster::NodeStatus::start(loop, access, timing.status)),
      patch_(cluster::NodePatch::start(loop, access, timing.patch)),
      taints_(cluster::NodeTaints::start(loop, access, {health::kFaultTaint}, timing.taints)) {}

void FaultTelling::update(const health::View& view, const config::FaultSettings& settings) {
  const auto news = health::node_news(view);
  const std::string severity(health::name(news.severity));
  if (settings.condition) {
    status_->set({health::kCondition, status_of(news.healthy), news.reason, news.message});
  } else if (condition_ != false) {
    status_->remove(health::kCondition);
  }
  condition_ = settings.condition;
  patch_->set_label(health::kHealthLabel, settings.label ? std::optional(severity) : std::nullopt);
  std::vector<cluster::Taint> taints;
  const auto effect = settings.taints.find(news.severity);
  if (effect != settings.taints.end()) taints.push_back({health::kFaultTaint, severity, effect->second});
  if (const auto set = taints_->set(std::move(taints)); !set) {
    log::warning("the node's taint is not set", set.error());
  }
}

}  // namespace gpulet::agent
