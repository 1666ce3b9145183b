#include "dra/partition_keeper.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"
#include "mig/fixed_instance.h"

namespace gpulet::dra {
namespace {

constexpr BackoffLimits kPartitionRetry{std::chrono::milliseconds(100), std::chrono::seconds(5)};

bool passes_by_itself(Code code) {
  return code == Code::kUnavailable || code == Code::kDeadlineExceeded || code == Code::kIo ||
         code == Code::kNotFound;  // a GPU that the driver does not list now
}

}  // namespace

PartitionKeeper::Work& PartitionKeeper::work_of(const std::string& uid) {
  return works_.try_emplace(uid, Work{.backoff = Backoff(kPartitionRetry, std::hash<std::string>()(uid))})
      .first->second;
}

void PartitionKeeper::write(const ClaimRecord& record) {
  const auto written = ports_.write_record(record);
  // What is on the disk leads to the same, in more steps.
  if (!written) log::error("cannot write the record of a claim", written.error());
}

template <class Answer>
std::function<void(Answer)> PartitionKeeper::begin_call(const std::string& uid, std::size_t device,
                                                        void (PartitionKeeper::*next)(const std::string&,
                                                                                      std::size_t,
                                                                                      const Answer&)) {
  auto& work = work_of(uid);
  work.busy = true;
  return [this, uid, device, next, call = ++work.call, alive = lifetime_.watch()](Answer answer) {
    if (!alive) return;
    const auto found = works_.find(uid);
    if (found == works_.end() || found->second.call != call) return;
    found->second.busy = false;
    (this->*next)(uid, device, answer);
  };
}

Status PartitionKeeper::check_partitions(const std::string& uid) {
  auto& work = work_of(uid);
  if (!work.busy && work.error && !work.retry) {
    const Error error = *std::exchange(work.error, std::nullopt);
    return fail(error);
  }
  if (!work.busy && !work.retry) advance(uid);
  const auto* record = ports_.find_record(uid);
  const auto& now = work_of(uid);
  if (record == nullptr) return fail(Code::kUnavailable, "the claim has no record");
  for (std::size_t i = 0; i < record->devices.size(); ++i) {
    const auto& device = record->devices[i];
    if (!device.partition || (!device.uuid.empty() && (!device.partition->made || now.verified.contains(i))))
      continue;
    if (now.error) return fail(Code::kUnavailable, now.error->message(), now.error->subject());
    return fail(Code::kUnavailable, "the MIG device " + partition_text(device.partition->partition) + " of " +
                                        device.partition->gpu.str() + " is being made");
  }
  return {};
}

void PartitionKeeper::advance(const std::string& uid) {
  auto* record = ports_.find_record(uid);
  if (record == nullptr) {
    works_.erase(uid);
    return;
  }
  auto& work = work_of(uid);
  if (work.busy) return;
  work.retry.reset();
  if (record->ending) return remove_next(uid, *record);
  make_next(uid, *record);
}

void PartitionKeeper::make_next(const std::string& uid, ClaimRecord& record) {
  const auto& work = work_of(uid);
  for (std::size_t i = 0; i < record.devices.size(); ++i) {
    const auto& device = record.devices[i];
    if (!device.partition) continue;
    if (device.partition->made && !work.verified.contains(i)) return make_device(uid, i, true);
    if (!device.uuid.empty()) continue;
    return ports_.partitions.find_partition(
        device.partition->gpu, device.partition->partition,
        begin_call<Result<DeviceUuid>>(uid, i, &PartitionKeeper::on_found));
  }
}

void PartitionKeeper::make_device(const std::string& uid, std::size_t device, bool resumes) {
  const auto& place = *ports_.find_record(uid)->devices[device].partition;
  ports_.partitions.make_partition(place.gpu, place.partition, resumes,
                                   begin_call<Result<DeviceUuid>>(uid, device, &PartitionKeeper::on_made));
}

// One that is there is used, and stays. Else that it is the claim's is known before it is there.
void PartitionKeeper::on_found(const std::string& uid, std::size_t device, const Result<DeviceUuid>& found) {
  auto* record = ports_.find_record(uid);
  if (record == nullptr || record->ending) return advance(uid);
  if (!found) return on_error(uid, found.error());
  auto& recorded = record->devices[device];
  if (!found->empty()) {
    recorded.uuid = *found;
    write(*record);
    advance(uid);
    return ports_.changed();
  }
  recorded.partition->made = true;
  if (const auto written = ports_.write_record(*record); !written) {
    recorded.partition->made = false;
    return on_error(uid, written.error());
  }
  make_device(uid, device, false);
}

void PartitionKeeper::on_made(const std::string& uid, std::size_t device, const Result<DeviceUuid>& made) {
  auto* record = ports_.find_record(uid);
  if (record == nullptr) return advance(uid);
  auto& recorded = record->devices[device];
  if (made) {
    const bool is_known = std::exchange(recorded.uuid, *made) == *made;
    auto& work = work_of(uid);
    work.verified.insert(device);
    work.error.reset();
    work.backoff.reset();
    if (!is_known) write(*record);
    advance(uid);
    return ports_.changed();
  }
  if (made.error().code() == mig::kNotMade) {
    recorded.partition->made = false;
    write(*record);
    return on_error(uid, Error(Code::kUnavailable, made.error().message(), made.error().subject()));
  }
  on_error(uid, made.error());
}

void PartitionKeeper::remove_next(const std::string& uid, ClaimRecord& record) {
  for (std::size_t i = 0; i < record.devices.size(); ++i) {
    const auto& device = record.devices[i];
    if (!device.partition || !device.partition->made) continue;
    return ports_.partitions.remove_partition(device.partition->gpu, device.partition->partition, device.uuid,
                                              begin_call<Status>(uid, i, &PartitionKeeper::on_removed));
  }
  if (const auto ended = ports_.ended(uid); !ended) return on_error(uid, ended.error());
  works_.erase(uid);
}

void PartitionKeeper::on_removed(const std::string& uid, std::size_t device, const Status& removed) {
  auto* record = ports_.find_record(uid);
  if (record == nullptr) return advance(uid);
  if (!removed) return on_error(uid, removed.error());
  auto& recorded = record->devices[device];
  recorded.partition->made = false;
  recorded.uuid = {};
  write(*record);
  advance(uid);
}

void PartitionKeeper::on_error(const std::string& uid, const Error& error) {
  auto& work = work_of(uid);
  const auto* record = ports_.find_record(uid);
  const bool is_ending = record != nullptr && record->ending;
  if (is_ending && (!work.error || work.error->full_message() != error.full_message()))
    log::warning("a MIG device of a claim that has ended stays for now", error, {{"uid", uid}});
  work.error = error;
  work.is_held |= is_ending;
  if (is_ending || passes_by_itself(error.code()))
    work.retry = ports_.loop.after(work.backoff.next_delay(), [this, uid] { advance(std::string(uid)); });
  ports_.changed();
}

void PartitionKeeper::resume_ending(const std::string& uid) {
  work_of(uid).is_held = true;
  advance(uid);
}

std::map<DeviceUuid, std::set<Partition>> PartitionKeeper::held_partitions() const {
  std::map<DeviceUuid, std::set<Partition>> held;
  for (const auto& [uid, work] : works_) {
    const auto* record = work.is_held ? ports_.find_record(uid) : nullptr;
    if (record == nullptr || !record->ending) continue;
    for (const auto& device : record->devices) {
      if (device.partition && device.partition->made)
        held[device.partition->gpu].insert(device.partition->partition);
    }
  }
  return held;
}

void PartitionKeeper::retry_waiting() {
  std::vector<std::string> waiting;
  for (const auto& [uid, work] : works_) {
    if (work.retry) waiting.push_back(uid);
  }
  for (const auto& uid : waiting) advance(uid);
}

void PartitionKeeper::restart_calls() {
  std::vector<std::string> busy;
  for (auto& [uid, work] : works_) {
    if (!std::exchange(work.busy, false)) continue;
    ++work.call;
    busy.push_back(uid);
  }
  for (const auto& uid : busy) advance(uid);
}

}  // namespace gpulet::dra
