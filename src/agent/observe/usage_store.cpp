#include "agent/observe/usage_store.h"

#include <cstdio>
#include <utility>

#include "base/file.h"
#include "base/log.h"

namespace gpulet::agent {
namespace {

constexpr mode_t kUsageFileMode = 0600;

Status write_usage_file(const std::string& path, const metrics::UsageRecord& record) {
  return write_file_atomic(path, metrics::format_usage_record(record), kUsageFileMode);
}

}  // namespace

UsageStore::UsageStore(Loop& loop, std::string boot_id, Duration interval)
    : loop_(loop),
      boot_id_(std::move(boot_id)),
      interval_(interval),
      relay_(std::make_shared<LoopRelay>(loop)) {}

UsageStore::~UsageStore() {
  relay_->close_relay();
  if (sums_ != nullptr) update_record();
  if (is_changed_ && !path_.empty()) report_status(write_usage_file(path_, *record_));
}

void UsageStore::set_state_dir(const std::string& directory) {
  path_ = directory.empty() ? std::string() : directory + "/" + kUsageFile;
}

std::optional<WallTime> UsageStore::since() const {
  return record_ ? std::optional(record_->since) : std::nullopt;
}

void UsageStore::attach(metrics::Aggregator& sums) {
  if (!record_) record_ = load_record();
  sums_ = &sums;
  seen_revision_ = sums.usage_accounting().revision();
  sums.restore_usage(*record_, boot_id_);
}

void UsageStore::detach() {
  if (sums_ == nullptr) return;
  update_record();
  sums_ = nullptr;
}

void UsageStore::save_if_changed() {
  if (sums_ == nullptr) return;
  const auto revision = sums_->usage_accounting().revision();
  if (std::exchange(seen_revision_, revision) != revision) is_changed_ = true;
  if (is_changed_ && !timer_) timer_ = loop_.after(interval_, [this] { save(); });
}

// A file of another program or version, or a damaged one, is kept for people; the sums begin again.
metrics::UsageRecord UsageStore::load_record() {
  metrics::UsageRecord empty;
  empty.boot_id = boot_id_;
  empty.since = std::chrono::floor<std::chrono::milliseconds>(loop_.wall_now());
  if (path_.empty()) return empty;
  const auto text = read_file(path_, metrics::kMaxUsageBytes);
  if (!text && text.error().code() == Code::kNotFound) return empty;
  auto record = text ? metrics::parse_usage_record(*text) : fail(text.error());
  if (record) return std::move(*record);
  const std::string aside = path_ + kBrokenUsageSuffix;
  const bool is_aside = std::rename(path_.c_str(), aside.c_str()) == 0;
  log::warning(is_aside
                   ? "cannot read the usage file; it is set aside as " + aside + ", and the sums begin again"
                   : "cannot read the usage file; the sums begin again",
               Error(record.error().code(), record.error().message(), path_));
  return empty;
}

void UsageStore::update_record() {
  const auto since = record_->since;
  record_ = sums_->usage_record();
  record_->since = since;
  record_->boot_id = boot_id_;
}

void UsageStore::save() {
  timer_.reset();
  if (sums_ != nullptr) update_record();
  is_changed_ = false;
  if (path_.empty()) return;
  const auto answer = [this, alive = lifetime_.watch()](const Status& status) {
    if (!alive) return;
    if (!status) is_changed_ = true;
    report_status(status);
  };
  const auto started =
      start_detached_thread("usage", [relay = relay_, path = path_, record = *record_, answer] {
        relay->post_to_loop([answer, status = write_usage_file(path, record)] { answer(status); });
      });
  if (!started) answer(started);
}

void UsageStore::report_status(const Status& status) {
  if (std::exchange(has_failed_, !status) == !status) return;
  if (status) return log::info("the usage file is written again");
  log::warning("cannot write the usage file; it is tried again after the next change", status.error());
}

}  // namespace gpulet::agent
