#include "agent/remediation/repair_outputs.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/file.h"
#include "base/log.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kMaxSentinelBytes = 64u << 10;

}  // namespace

RepairRecordStore::RepairRecordStore(Loop& loop, std::string path)
    : loop_(loop), path_(std::move(path)), relay_(std::make_shared<LoopRelay>(loop)) {}

RepairRecordStore::~RepairRecordStore() { relay_->close_relay(); }

void RepairRecordStore::save_record(const repair::Record& record, Done done) {
  next_ = record;
  waiting_.push_back(std::move(done));
  if (!is_writing_) write_next();
}

void RepairRecordStore::write_next() {
  if (!next_) return;
  is_writing_ = true;
  const auto record = *std::exchange(next_, std::nullopt);
  const auto answer = [this, alive = lifetime_.watch(),
                       waiting = std::exchange(waiting_, {})](const Status& status) {
    if (!alive) return;
    is_writing_ = false;
    for (const auto& done : waiting) {
      if (alive) done(status);
    }
    if (alive && !is_writing_) write_next();
  };
  if (path_.empty()) return loop_.post([answer] { answer({}); });
  const auto started =
      start_detached_thread("the record of repairs", [relay = relay_, path = path_, record, answer] {
        relay->post_to_loop([answer, status = repair::write_record(path, record)] { answer(status); });
      });
  if (!started) loop_.post([answer, started] { answer(started); });
}

RebootRequester::RebootRequester(Loop& loop, std::optional<k8s::ClientConfig> access, bool was_requested)
    : loop_(loop), access_(std::move(access)), is_leftover_(was_requested) {}

void RebootRequester::set_request(const repair::RebootRequestPolicy& policy,
                                  const std::optional<std::string>& text) {
  set_condition(policy.enabled && policy.condition, text);
  // Removed even if this agent has not set it; with a request that still stands, it is set again.
  if (std::exchange(is_leftover_, false) && !text) {
    annotation_ = policy.annotation;
    sentinel_ = policy.sentinel_file;
  }
  set_annotation(text ? policy.annotation : std::string());
  set_sentinel(text ? policy.sentinel_file : std::string(), text.value_or(""));
}

void RebootRequester::set_condition(bool is_wanted, const std::optional<std::string>& text) {
  if (!access_ || (!is_wanted && !has_condition_ && !is_leftover_)) return;
  if (!conditions_) conditions_ = k8s::NodeConditions::start_conditions(loop_, *access_);
  if (!is_wanted) {
    conditions_->remove_condition(repair::kRebootCondition);
  } else {
    using ConditionStatus = k8s::Condition::Status;
    conditions_->set_condition(
        {repair::kRebootCondition, text ? ConditionStatus::kTrue : ConditionStatus::kFalse,
         text ? "GpuFault" : "NoRebootRequired", text.value_or("no GPU needs a reboot")});
  }
  has_condition_ = is_wanted;
}

void RebootRequester::set_annotation(const std::string& key) {
  if (!access_ || key == annotation_) return;
  if (!annotations_) annotations_ = k8s::NodeLabelPatcher::start_annotation_patcher(loop_, *access_);
  if (!annotation_.empty()) annotations_->set_label(annotation_, std::nullopt);
  if (!key.empty()) annotations_->set_label(key, "true");
  annotation_ = key;
}

void RebootRequester::set_sentinel(const std::string& path, const std::string& text) {
  if (!sentinel_.empty() && sentinel_ != path) {
    const auto content = read_file(sentinel_, kMaxSentinelBytes);
    if (content && content->starts_with(kSentinelHead)) ::unlink(sentinel_.c_str());
  }
  sentinel_ = path;
  // The file of someone else who asks for a reboot too is not overwritten.
  if (path.empty() || ::access(path.c_str(), F_OK) == 0) return;
  const auto written = write_file_atomic(path, std::string(kSentinelHead) + "\n" + text + "\n");
  const std::string error = written ? "" : written.error().full_message();
  if (!written && error != sentinel_error_)
    log::warning("cannot write the file that asks for a reboot", written.error());
  sentinel_error_ = error;
}

}  // namespace gpulet::agent
