#include "agent/power/power_record.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"

namespace gpulet::agent {
namespace {

using nlohmann::json;
using partition::watts_text;

constexpr int kPowerFileVersion = 1;
constexpr mode_t kPowerFileMode = 0600;
constexpr std::size_t kMaxSetLimits = 2;

json record_node(const PowerRecord& record) {
  json node = json::object();
  if (record.before) {
    node["beforeMilliwatts"] = record.before->value;
    for (const auto& limit : record.set) node["setMilliwatts"].push_back(limit.value);
  }
  if (record.graphics) node["graphicsClocks"] = true;
  if (record.memory) node["memoryClocks"] = true;
  return node;
}

std::optional<MilliWatts> milliwatts_in(const json& node) {
  if (!node.is_number_unsigned() || node.get<std::uint64_t>() > UINT32_MAX) return std::nullopt;
  return MilliWatts{node.get<std::uint32_t>()};
}

Result<PowerRecord> parse_record(const json& node, const std::string& gpu) {
  const auto wrong = [&](const std::string& field, const std::string& expected) {
    return fail(Code::kInvalidArgument, gpu + "." + field + ": expected " + expected);
  };
  if (!node.is_object()) return fail(Code::kInvalidArgument, gpu + ": expected an object");
  PowerRecord record;
  for (const auto& [key, value] : node.items()) {
    if (key == "beforeMilliwatts") {
      record.before = milliwatts_in(value);
      if (!record.before) return wrong(key, "milliwatts");
    } else if (key == "setMilliwatts") {
      if (!value.is_array() || value.empty() || value.size() > kMaxSetLimits)
        return wrong(key, "one or two limits");
      for (const auto& item : value) {
        const auto limit = milliwatts_in(item);
        if (!limit) return wrong(key, "milliwatts");
        record.set.push_back(*limit);
      }
    } else if (key == "graphicsClocks" || key == "memoryClocks") {
      if (value != true) return wrong(key, "true");
      (key == "graphicsClocks" ? record.graphics : record.memory) = true;
    } else {
      return fail(Code::kInvalidArgument, gpu + ": unknown field \"" + key + "\"");
    }
  }
  if (record.before.has_value() == record.set.empty())
    return fail(Code::kInvalidArgument,
                gpu + ": expected both or none of beforeMilliwatts and setMilliwatts");
  return record;
}

void plan_limit(const PowerRecord& record, const partition::ResolvedPower& wanted,
                const PowerReading& reading, bool is_due, bool is_record_lost, PowerStep& step) {
  if (!reading.limit || (wanted.is_limit_kept && !wanted.limit)) return;
  const auto current = *reading.limit;
  const bool is_ours = std::ranges::find(record.set, current) != record.set.end();
  if (!wanted.limit) {
    if (record.before && is_ours && current != *record.before) step.writes.limit = record.before;
    step.after.before.reset();
    step.after.set.clear();
    return;
  }
  const bool is_nobodys =
      current == record.before || !reading.bounds.limit || current == reading.bounds.limit->preset;
  if (record.before && current != *wanted.limit && !is_ours && !is_nobodys && !is_due) {
    step.drift = "another program has set the power limit to " + watts_text(current) + ": gpulet's is " +
                 watts_text(*wanted.limit);
    return;
  }
  if (!record.before) {
    const bool is_default = is_record_lost && reading.bounds.limit;
    step.record.before = step.after.before = is_default ? reading.bounds.limit->preset : current;
  }
  step.after.set = {*wanted.limit};
  step.record.set = step.after.set;
  if (current == *wanted.limit) return;
  if (is_ours) step.record.set.insert(step.record.set.begin(), current);
  step.writes.limit = wanted.limit;
}

// `before`: what was last applied; nullopt: not in this session.
std::optional<ClockWrite> plan_clocks(const std::optional<config::ClockRange>& wanted,
                                      const std::optional<std::optional<config::ClockRange>>& before,
                                      bool is_locked, bool PowerRecord::* flag, PowerStep& step) {
  step.after.*flag = wanted.has_value();
  if (wanted) {
    step.record.*flag = true;
    if (before == wanted) return std::nullopt;
    return ClockWrite{wanted};
  }
  if (is_locked) return ClockWrite{};
  return std::nullopt;
}

}  // namespace

std::string power_records_json(const PowerRecords& records) {
  json gpus = json::object();
  for (const auto& [gpu, record] : records) gpus[gpu.str()] = record_node(record);
  const json root = {{"version", kPowerFileVersion}, {"gpus", std::move(gpus)}};
  return root.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<PowerRecords> parse_power_records(std::string_view text) {
  if (text.size() > kMaxPowerFileBytes)
    return fail(Code::kInvalidArgument, "expected at most " + std::to_string(kMaxPowerFileBytes) +
                                            " bytes, found " + std::to_string(text.size()));
  const auto root = parse_json(text);
  if (root.is_discarded() || !root.is_object()) return fail(Code::kInvalidArgument, "not a JSON object");
  if (json_member(root, "version") != kPowerFileVersion)
    return fail(Code::kInvalidArgument, "version: expected 1");
  const auto& gpus = json_member(root, "gpus");
  if (!gpus.is_object() || gpus.size() > kMaxPowerGpus || root.size() != 2)
    return fail(Code::kInvalidArgument, "gpus: expected at most " + std::to_string(kMaxPowerGpus) + " GPUs");
  PowerRecords records;
  for (const auto& item : gpus.items()) {
    GPULET_TRY_ASSIGN(auto record, parse_record(item.value(), item.key()));
    if (record.is_empty()) return fail(Code::kInvalidArgument, item.key() + ": expected a change");
    records[DeviceUuid(item.key())] = std::move(record);
  }
  return records;
}

Result<PowerRecords> load_power_records(const std::string& path) {
  const auto text = read_file(path, kMaxPowerFileBytes);
  if (!text && text.error().code() == Code::kNotFound) return PowerRecords{};
  if (!text) return fail(text.error());
  auto records = parse_power_records(*text);
  if (!records) return fail(records.error().code(), records.error().message(), path);
  return records;
}

Status save_power_records(const std::string& path, const PowerRecords& records) {
  if (!records.empty()) return write_file_atomic(path, power_records_json(records), kPowerFileMode);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
  return fail(errno_error("cannot remove the record", errno, path));
}

PowerStep plan_power_step(const PowerRecord& record, const partition::ResolvedPower& wanted,
                          const PowerReading& reading, const std::optional<PowerApplied>& applied,
                          bool is_record_lost) {
  PowerStep step{.record = record, .after = record};
  const bool is_same_session = applied && applied->session == reading.session;
  plan_limit(record, wanted, reading, !is_same_session || applied->power.limit != wanted.limit,
             is_record_lost, step);
  using Before = std::optional<std::optional<config::ClockRange>>;
  const bool was_reset = !is_same_session || (step.writes.limit && reading.bounds.limit &&
                                              reading.limit == reading.bounds.limit->preset);
  const auto before = [&](const auto& clocks) { return was_reset ? Before() : Before(clocks); };
  const PowerApplied none;
  const auto& last = applied ? *applied : none;
  step.writes.graphics = plan_clocks(wanted.graphics, before(last.power.graphics), record.graphics,
                                     &PowerRecord::graphics, step);
  step.writes.memory =
      plan_clocks(wanted.memory, before(last.power.memory), record.memory, &PowerRecord::memory, step);
  return step;
}

}  // namespace gpulet::agent
