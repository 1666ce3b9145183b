#include "cli/top_json.h"

#include <nlohmann/json.hpp>

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& object, const char* key, const std::optional<double>& value) {
  if (!value) return;
  const auto whole = static_cast<std::int64_t>(*value);
  if (static_cast<double>(whole) == *value) {
    object[key] = whole;
  } else {
    object[key] = *value;
  }
}

Json device_object(const TopDevice& device) {
  Json object = {{"gpu", device.index},
                 {"uuid", device.uuid},
                 {"name", device.name},
                 {"state", device.state},
                 {"reason", device.reason}};
  const auto& now = device.now;
  put(object, "memory_total", device.memory_total);
  put(object, "util", now.util);
  put(object, "sm", now.sm);
  put(object, "memory_util", now.memory_util);
  put(object, "memory", now.memory);
  put(object, "temperature", now.temperature);
  put(object, "power", now.power);
  put(object, "power_limit", now.power_limit);
  put(object, "sm_clock", now.sm_clock);
  put(object, "memory_clock", now.memory_clock);
  object["pods"] = device.pods;
  return object;
}

void put_used(Json& object, const TopUsed& used) {
  put(object, "busy", used.busy);
  put(object, "memory", used.memory);
}

}  // namespace

std::string top_json(const TopModel& model, const TopView& view) {
  Json document = Json::object();
  if (const auto at = model.at()) document["at"] = *at;
  if (const auto* node = model.node()) {
    document.update(
        {{"node", node->name}, {"driver", node->driver}, {"cuda", node->cuda}, {"problems", node->problems}});
  }
  for (const char* list : {"gpus", "pods", "processes"}) document[list] = Json::array();
  for (const auto& gpu : model.gpus(query_of(view, TopTab::kGpus))) {
    Json object = device_object(gpu);
    object["slices"] = Json::array();
    for (const auto& slice : gpu.slices) object["slices"].push_back(device_object(slice));
    document["gpus"].push_back(std::move(object));
  }
  for (const auto& row : model.pods(query_of(view, TopTab::kPods))) {
    Json object = {
        {"pod", row.pod}, {"containers", row.containers}, {"gpus", row.devices}, {"shares", row.shares}};
    put_used(object, row.used);
    document["pods"].push_back(std::move(object));
  }
  for (const auto& row : model.processes(query_of(view, TopTab::kProcesses))) {
    Json object = {{"pid", row.pid}, {"name", row.name}, {"gpu", row.device}};
    put_used(object, row.used);
    object["pod"] = row.pod;
    document["processes"].push_back(std::move(object));
  }
  return document.dump();
}

}  // namespace gpulet::cli
