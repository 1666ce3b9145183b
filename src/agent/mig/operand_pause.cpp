#include "agent/mig/operand_pause.h"

#include <utility>

#include "agent/driver/driver_release.h"
#include "agent/mig/mig_manager.h"
#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

constexpr const char* kValidations = "nvidia-cuda-validator,nvidia-device-plugin-validator";
constexpr const char* kOperatorValidator = "nvidia-operator-validator";

constexpr std::string_view kClient = "client";

struct Operand {
  std::string_view name;  // of its label
  const char* apps;       // its Pods by their label `app`; empty: nobody waits for them
};
// The MPS daemons' DaemonSet follows the device plugin's label and holds the GPUs too.
constexpr Operand kOperands[] = {
    {"device-plugin", "nvidia-device-plugin-daemonset,nvidia-device-plugin-mps-control-daemon"},
    {"gpu-feature-discovery", "gpu-feature-discovery"},
    {"dcgm-exporter", "nvidia-dcgm-exporter"},
    {"dcgm", "nvidia-dcgm"},
    {"nvsm", ""},
    {kClient, ""},
};

std::string label_key(std::string_view name) { return std::string(kOperandLabelPrefix) + std::string(name); }

std::string pod_names(const std::vector<PodRef>& pods) {
  std::vector<std::string> names;
  for (const auto& pod : pods) names.push_back(pod.name_space + "/" + pod.name);
  return text::join(names, ", ");
}

}  // namespace

OperandPause::OperandPause(OperandPorts ports, std::uint64_t seed)
    : ports_(std::move(ports)), backoff_(kOperandRetry, seed) {}

void OperandPause::set_labels(std::map<std::string, std::string> labels) {
  labels_ = std::move(labels);
  std::erase_if(returning_, [this](const std::string& key) {
    const auto found = labels_.find(key);
    return found == labels_.end() || found->second != kOperandPaused;
  });
  if (pausing_) return check_labels();
  // The driver manager puts back the values that it found, a pause of an ended change among them.
  if (is_idle_ && has_leftovers()) put_labels_back();
}

std::vector<std::string> OperandPause::paused_labels() const {
  std::vector<std::string> keys;
  for (const auto& operand : kOperands) {
    const auto found = labels_.find(label_key(operand.name));
    if (found != labels_.end() && found->second == kOperandPaused) keys.push_back(found->first);
  }
  return keys;
}

bool OperandPause::has_leftovers() const {
  for (const auto& key : paused_labels()) {
    if (!returning_.contains(key)) return true;
  }
  return false;
}

void OperandPause::run_hooks(mig::HookPoint point, const HookSubject& about, Done done) {
  if (point == mig::HookPoint::kApplyStart) return start_pause(about, std::move(done));
  if (point == mig::HookPoint::kApplyExit) return put_back(std::move(done));
  ports_.loop.post([done = std::move(done)] { done({}); });
}

void OperandPause::start_pause(const HookSubject& about, Done done) {
  if (std::exchange(layout_, about.layout) != about.layout) {
    not_before_.reset();
    backoff_.reset();
  }
  if (not_before_ && ports_.loop.now() < *not_before_) {
    return ports_.loop.post([done = std::move(done)] {
      done(fail(Code::kFailedPrecondition,
                "the last try has failed, so the operator's Pods are not stopped again for now"));
    });
  }
  is_idle_ = false;
  stopped_ = true;
  returning_.clear();
  ports_.set_label(kMigStateLabel, std::string(kMigPending));
  for (const auto& operand : kOperands) {
    const auto found = labels_.find(label_key(operand.name));
    if (found == labels_.end() || found->second != kOperandDeployed) continue;
    ports_.set_label(found->first, std::string(kOperandPaused));
    paused_.insert(found->first);
  }
  for (const auto& key : paused_labels()) paused_.insert(key);  // by a process before this one
  pausing_ = std::move(done);
  waiting_for_ = "the pause of the node's labels";
  deadline_ = ports_.loop.after(kOperandPauseLimit, [this] {
    end_pause(fail(
        Code::kDeadlineExceeded,
        "the operands were paused for " +
            std::to_string(std::chrono::duration_cast<std::chrono::minutes>(kOperandPauseLimit).count()) +
            " minutes, and there still is " + waiting_for_));
  });
  poll_ = ports_.loop.after(Duration::zero(), [this] { check_labels(); });
}

// A Pod that is deleted while its label is "true" comes back.
void OperandPause::check_labels() {
  for (const auto& key : paused_) {
    const auto found = labels_.find(key);
    if (found != labels_.end() && found->second == kOperandDeployed) return;
  }
  if (!listing_) list_operands();
}

void OperandPause::list_operands() {
  std::vector<std::string> apps;
  for (const auto& operand : kOperands) {
    if (*operand.apps != '\0' && paused_.contains(label_key(operand.name))) apps.emplace_back(operand.apps);
  }
  poll_.reset();
  if (apps.empty()) return list_clients({});
  listing_ = true;
  ports_.pods.list_pods(
      {.name_space = ports_.name_space, .label_selector = "app in (" + text::join(apps, ",") + ")"},
      [this, alive = lifetime_.watch()](Result<std::vector<PodRef>> pods) {
        if (!alive) return;
        listing_ = false;
        pods ? list_clients(std::move(*pods)) : on_operands(std::move(pods));
      });
}

void OperandPause::list_clients(std::vector<PodRef> pods) {
  const auto client = label_key(kClient);
  if (!paused_.contains(client)) return on_operands(std::move(pods));
  listing_ = true;
  ports_.pods.list_pods(
      {.node_selector_key = client},
      [this, pods = std::move(pods), alive = lifetime_.watch()](Result<std::vector<PodRef>> clients) mutable {
        if (!alive) return;
        listing_ = false;
        if (clients) {
          pods.insert(pods.end(), clients->begin(), clients->end());
          clients = std::move(pods);
        }
        on_operands(std::move(clients));
      });
}

void OperandPause::on_operands(Result<std::vector<PodRef>> pods) {
  if (!pausing_) return;  // the limit has passed meanwhile
  if (pods && pods->empty()) {
    return delete_apps(kValidations, [this](const Status& status) { end_pause(status); });
  }
  waiting_for_ = pods ? "Pod " + pod_names(*pods) : "no list of their Pods: " + pods.error().full_message();
  poll_ = ports_.loop.after(kOperandPoll, [this] { check_labels(); });
}

void OperandPause::end_pause(const Status& status) {
  if (!pausing_) return;
  deadline_.reset();
  poll_.reset();
  const auto done = std::move(*pausing_);
  pausing_.reset();
  to_renew_ = to_renew_ || status.has_value();
  done(status);
}

void OperandPause::delete_apps(const std::string& apps, Done done) {
  ports_.pods.list_pods(
      {.name_space = ports_.name_space, .label_selector = "app in (" + apps + ")"},
      [this, done = std::move(done), alive = lifetime_.watch()](Result<std::vector<PodRef>> pods) {
        if (!alive) return;
        if (!pods) return done(fail(pods.error()));
        ports_.pods.delete_pods(std::move(*pods), [done, alive](const Status& status) {
          if (alive) done(status);
        });
      });
}

void OperandPause::put_back(Done done) {
  if (!to_renew_) {
    put_labels_back();
    return ports_.loop.post([done = std::move(done)] { done({}); });
  }
  const Status renewed = ports_.renew_specs();
  delete_apps(kOperatorValidator, [this, renewed, done = std::move(done)](const Status& deleted) {
    const Status status = renewed ? deleted : renewed;
    to_renew_ = !status;
    put_labels_back();
    done(status);
  });
}

void OperandPause::put_labels_back() {
  for (const auto& key : paused_labels()) paused_.insert(key);
  for (const auto& key : std::exchange(paused_, {})) {
    const auto found = labels_.find(key);
    // Removed meanwhile, or paused by somebody else, who puts it back.
    if (found == labels_.end() || (found->second != kOperandPaused && found->second != kOperandDeployed))
      continue;
    ports_.set_label(key, std::string(kOperandDeployed));
    returning_.insert(key);
  }
}

void OperandPause::end_round(std::string_view state) {
  const bool success = state == kMigSuccess;
  const bool first = !std::exchange(is_idle_, true);
  if (success) {
    not_before_.reset();
    backoff_.reset();
  } else if (stopped_) {
    not_before_ = ports_.loop.now() + backoff_.next_delay();
  }
  if (std::exchange(stopped_, false) || !first || !has_leftovers()) return publish_state(success);
  // A process before this one has changed MIG, and ended before it put the operands back.
  to_renew_ = true;
  put_back([this, success](const Status& status) {
    if (!status) log::warning("cannot complete the change of MIG of an earlier process", status.error());
    publish_state(success && status.has_value());
  });
}

void OperandPause::abandon_round() {
  if (pausing_) return;
  is_idle_ = true;
  if (has_leftovers()) put_labels_back();
}

void OperandPause::publish_state(bool success) {
  ports_.set_label(kMigStateLabel, std::string(success ? kMigSuccess : kMigFailed));
}

}  // namespace gpulet::agent
