#include "agent/dra/claim_daemon_health.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "dra/claim_fit.h"
#include "dra/claim_record.h"
#include "mps/plan.h"

namespace gpulet::agent {

std::vector<DaemonNotice> ClaimDaemonHealth::check_claims(
    const std::map<std::string, dra::ClaimRecord>& records, Time now) {
  std::vector<DaemonNotice> notices;
  std::map<std::string, Known> known;
  unserved_.clear();
  for (const auto& [uid, record] : records) {
    for (std::size_t i = 0; i < record.daemons.size(); ++i) {
      const auto name = mps::claim_daemon_name(uid, i);
      const auto before = known_.find(name);
      auto& daemon = known[name] = before == known_.end() ? Known{.since = now} : before->second;
      const std::string claim = dra::claim_text(record);
      const auto notice = [&](bool is_warning, std::string message) {
        notices.push_back({record.name_space, record.name, uid, is_warning, std::move(message)});
      };
      const Status serves = ports_.check_daemon(name);
      if (serves) {
        daemon.has_served = true;
        if (std::exchange(daemon.is_noticed, false))
          notice(false, "the MPS control daemon of claim " + claim +
                            " serves again: restart containers that ran before");
        continue;
      }
      const bool is_expected =
          ports_.is_being_prepared(uid) || (!daemon.has_served && now - daemon.since < kDaemonStartLimit);
      if (is_expected) continue;
      const std::string message = "the MPS control daemon of claim " + claim + " does not serve (" +
                                  serves.error().message() +
                                  "): if it ended, running containers have lost their CUDA contexts";
      for (const auto& device : record.daemons[i].devices) unserved_.emplace(device, message);
      if (!std::exchange(daemon.is_noticed, true)) notice(true, message);
    }
  }
  known_ = std::move(known);
  return notices;
}

void DaemonNotifier::notify_pods(const DaemonNotice& notice, bool sends_events) {
  notice.is_warning ? log::warning(notice.message) : log::info(notice.message);
  if (!sends_events || notice.name.empty()) return;
  source_.read_claim(
      {notice.name_space, notice.name, notice.uid},
      [this, notice, alive = lifetime_.watch()](const Result<std::optional<std::string>>& claim) {
        if (!alive) return;
        if (!claim) return log::warning("cannot read who uses a claim", claim.error());
        for (auto& pod : reserved_pods(*claim ? **claim : "", notice.uid)) {
          if (!events_) events_ = k8s::EventRecorder::start_recorder(loop_, access_);
          events_->record_event({.warning = notice.is_warning,
                                 .reason = notice.is_warning ? "MpsDaemonUnhealthy" : "MpsDaemonReady",
                                 .message = notice.message,
                                 .pod = std::move(pod)});
        }
      });
}

std::vector<PodRef> reserved_pods(std::string_view claim, const std::string& uid) {
  const auto parsed = parse_json(claim);
  if (json_text(json_member(json_member(parsed, "metadata"), "uid")) != uid) return {};
  return dra::reserved_pods(parsed);
}

}  // namespace gpulet::agent
