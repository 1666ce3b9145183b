// A Daemon whose shares have SMs of their own: static SM partitioning.
//
// The control program says neither how many chunks a GPU has nor how large they are before it makes
// partitions: the largest size of which there is one for each share is found by trial. An id is made once and
// is in the environment of containers, so a daemon that is adopted must still list all. Source: NVIDIA,
// "Legacy MPS v2 Interface" and reports of users (driver 590 and later); read, not run.
#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "mps/daemon.h"

namespace gpulet::mps {
namespace {

// Of a GPU: 188 SMs in chunks of 4 are 47.
constexpr unsigned kMostChunks = 64;
constexpr std::size_t kMaxPartitionsBytes = 64u << 10, kMaxIdLength = 256;

// "Partition GPU-…/Dw8P… created", also without the words around the id.
std::vector<std::string> partition_ids_in(const std::string& output, const DeviceUuid& device) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_";
  const std::string prefix = device.str() + "/";
  std::vector<std::string> ids;
  for (const auto& line : lines_of_output(output)) {
    for (const auto& word : text::split(line, ' ')) {
      if (!word.starts_with(prefix) || word.size() == prefix.size() || word.size() > kMaxIdLength) continue;
      if (word.find_first_not_of(kDigits, prefix.size()) == std::string::npos) ids.push_back(word);
    }
  }
  return ids;
}

// After the GPU, as the control program takes and lists it.
std::string short_id(const std::string& id) { return id.substr(id.find('/') + 1); }

}  // namespace

std::string Daemon::sm_partition_id(const DeviceId& share) const {
  const auto found = sm_partitions_.find(share);
  return found == sm_partitions_.end() ? std::string() : found->second;
}

// A row has the GPU, shortened, and the id, which is the same for the same SMs of another GPU.
bool Daemon::lists_sm_partitions(const std::string& list) const {
  std::vector<std::vector<std::string>> rows;
  for (const auto& line : lines_of_output(list)) rows.push_back(text::split(line, ' '));
  return std::ranges::all_of(spec_.sm_partitions, [&](const SmPartition& one) {
    const auto id = sm_partition_id(one.share);
    if (id.empty()) return false;
    const auto row = std::ranges::find_if(rows, [&](const auto& words) {
      return one.device.str().starts_with(words.front().substr(0, words.front().find('.'))) &&
             std::ranges::find(words, short_id(id)) != words.end();
    });
    if (row == rows.end()) return false;
    rows.erase(row);
    return true;
  });
}

void Daemon::check_sm_partitions(const std::string& list) {
  if (lists_sm_partitions(list)) return send_server_limits();
  if (launched_) {
    sm_partitions_.clear();
    return make_sm_partitions(0, kMostChunks);
  }
  if (state_ == State::kStarting && process_) return await_former_exit(&Daemon::launch);
  on_failure(Error(Code::kUnavailable, "the MPS control daemon has lost its SM partitions"));
}

void Daemon::make_sm_partitions(std::size_t device, unsigned chunks) {
  if (device == spec_.devices.size()) {
    if (const auto written = write_sm_partitions(); !written) return on_failure(written.error());
    launched_ = false;
    return send_server_limits();
  }
  const auto& uuid = spec_.devices[device].uuid;
  const auto shares =
      static_cast<unsigned>(std::ranges::count(spec_.sm_partitions, uuid, &SmPartition::device));
  chunks = std::min(chunks, kMostChunks / std::max(shares, 1U));
  std::string commands;
  for (unsigned n = 0; n < shares; ++n)
    commands += "sm_partition add " + uuid.str() + " " + std::to_string(chunks) + "\n";
  run_command({}, commands, options_.response_limit,
              [this, device, chunks](const Result<std::string>& output) {
                if (output) return on_sm_partitions(device, chunks, *output);
                on_failure(output.error().with_context("the MPS control daemon makes no SM partitions"));
              });
}

void Daemon::on_sm_partitions(std::size_t device, unsigned chunks, const std::string& output) {
  const auto& uuid = spec_.devices[device].uuid;
  const auto ids = partition_ids_in(output, uuid);
  std::vector<DeviceId> shares;
  for (const auto& one : spec_.sm_partitions) {
    if (one.device == uuid) shares.push_back(one.share);
  }
  if (ids.size() == shares.size()) {
    for (std::size_t i = 0; i < ids.size(); ++i) sm_partitions_[shares[i]] = ids[i];
    log::info("made SM partitions", {{"gpu", uuid.str()}, {"partitions", ids.size()}, {"chunks", chunks}});
    // The GPUs of a node are alike.
    return make_sm_partitions(device + 1, chunks + 1);
  }
  if (chunks == 1) {
    const auto lines = lines_of_output(output);
    return on_failure(Error(Code::kUnsupported, uuid.str() + " has no SM partitions for " +
                                                    std::to_string(shares.size()) + " shares" +
                                                    (lines.empty() ? "" : ": " + lines.back())));
  }
  std::string commands;
  for (const auto& id : ids) commands += "sm_partition rm " + uuid.str() + " " + short_id(id) + "\n";
  if (commands.empty()) return make_sm_partitions(device, chunks - 1);
  run_command({}, commands, options_.response_limit,
              [this, device, chunks](const Result<std::string>& removed) {
                if (removed) return make_sm_partitions(device, chunks - 1);
                on_failure(removed.error().with_context("the MPS control daemon makes no SM partitions"));
              });
}

// One that is absent or bad is as one that the daemon does not list.
void Daemon::read_sm_partitions() {
  sm_partitions_.clear();
  const auto text = read_file(sm_partitions_file(), kMaxPartitionsBytes);
  for (const auto& line : text ? lines_of_output(*text) : std::vector<std::string>()) {
    const auto fields = text::split(line, ' ');
    if (fields.size() == 2) sm_partitions_[DeviceId(fields[0])] = fields[1];
  }
}

Status Daemon::write_sm_partitions() const {
  std::string text;
  for (const auto& [share, id] : sm_partitions_) text += share.str() + " " + id + "\n";
  return write_file_atomic(sm_partitions_file(), text);
}

}  // namespace gpulet::mps
