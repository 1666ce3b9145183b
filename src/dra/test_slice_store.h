// ResourceSlices for tests, as the API server keeps them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>  // tidy: heavy-header because the slices are kept as JSON

#include "k8s/test_api_server.h"

namespace gpulet::dra::test {

// Of the pool of node-1. Any thread.
class SliceStore {
 public:
  std::atomic<bool> drops_taints{false}, drops_counters{false}, refuses_counters{false}, drops_shares{false};
  std::atomic<int> status{0};  // of every write; 0: as it is
  std::atomic<int> watches{0}, dry_runs{0};
  std::atomic<bool> ends_watches{false};  // as a server that ends: in the middle of a chunk
  // Called once, between a create and its answer.
  std::function<void()> before_answer;

  k8s::TestApiServer::Reply handle(const k8s::Received& request) {
    const std::string line = request.line();
    const std::string path = line.substr(line.find(' ') + 1);
    if (path == "/api/v1/nodes/node-1") return {200, R"({"metadata":{"uid":"node-uid"}})"};
    if (line.starts_with("GET") && path.find("watch=") != std::string::npos) return watch(path);
    auto reply = answer(line, path, request.body);
    if (line.starts_with("POST") && before_answer) std::exchange(before_answer, nullptr)();
    return reply;
  }

  // As by somebody else.
  void remove(const std::string& name) {
    std::lock_guard lock(mutex_);
    erase(name);
  }
  void change(const std::string& name, const std::function<void(nlohmann::json&)>& edit) {
    std::lock_guard lock(mutex_);
    nlohmann::json object = objects_.at(name);
    edit(object);
    put(std::move(object), false);
  }

  int writes() {
    std::lock_guard lock(mutex_);
    return writes_;
  }
  // "gpu-0 gpu-1!" with a mark for a taint.
  std::string devices() {
    std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [name, object] : objects_) {
      const auto& spec = object["spec"];
      if (!spec.contains("devices")) continue;
      for (const auto& device : spec["devices"]) {
        text += (text.empty() ? "" : " ") + device["name"].get<std::string>() +
                (device.contains("taints") ? "!" : "");
      }
    }
    return text;
  }
  std::vector<std::string> names() {
    std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, object] : objects_) names.push_back(name);
    return names;
  }
  // A ResourceSliceList.
  std::string list_json() {
    std::lock_guard lock(mutex_);
    return list().body;
  }
  std::size_t size() {
    std::lock_guard lock(mutex_);
    return objects_.size();
  }

 private:
  k8s::TestApiServer::Reply answer(const std::string& line, const std::string& path,
                                   const std::string& body) {
    std::lock_guard lock(mutex_);
    if (line.starts_with("GET")) return list();
    const bool dry = path.ends_with("?dryRun=All");
    if (dry) {
      ++dry_runs;
    } else {
      ++writes_;
    }
    if (status != 0) return {status, R"({"kind":"Status"})"};
    const std::string name = path.substr(path.rfind('/') + 1);
    if (line.starts_with("DELETE")) {
      const bool found = objects_.contains(name);
      if (found) erase(name);
      return {found ? 200 : 404, "{}"};
    }
    if (refuses_counters && body.find("sharedCounters") != std::string::npos)
      return {422, R"({"kind":"Status"})"};
    nlohmann::json object = nlohmann::json::parse(body);
    const std::string own = object["metadata"]["name"];
    const bool creates = line.starts_with("POST");
    if (creates == objects_.contains(own)) return {creates ? 409 : 404, "{}"};
    if (!creates && objects_[own]["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"]) {
      return {409, "{}"};
    }
    return {creates ? 201 : 200, (dry ? as_kept(std::move(object)) : put(std::move(object), creates)).dump()};
  }

  k8s::TestApiServer::Reply list() {
    nlohmann::json items = nlohmann::json::array();
    for (const auto& [name, object] : objects_) items.push_back(object);
    return {200, nlohmann::json{{"kind", "ResourceSliceList"},
                                {"metadata", {{"resourceVersion", std::to_string(version_)}}},
                                {"items", items}}
                     .dump()};
  }

  k8s::TestApiServer::Reply watch(const std::string& path) {
    ++watches;
    const auto at = path.find("resourceVersion=");
    int seen = std::stoi(path.substr(at + std::string("resourceVersion=").size()));
    return {.status = 200, .script = [this, seen](k8s::TestApiServer::Stream& stream) mutable {
              while (stream.wait_open(5) && !ends_watches.exchange(false)) {
                std::string events;
                {
                  std::lock_guard lock(mutex_);
                  for (const auto& [version, event] : events_) {
                    if (version > seen) events += event + "\n";
                  }
                  seen = version_;
                }
                if (!events.empty() && !stream.chunk(events)) return false;
              }
              return false;
            }};
  }

  // Without what a server drops whose feature gates are off.
  nlohmann::json as_kept(nlohmann::json object) const {
    if (drops_taints && object["spec"].contains("devices")) {
      for (auto& device : object["spec"]["devices"]) device.erase("taints");
    }
    if (drops_shares && object["spec"].contains("devices")) {
      for (auto& device : object["spec"]["devices"]) {
        device.erase("allowMultipleAllocations");
        for (auto& capacity : device["capacity"]) capacity.erase("requestPolicy");
      }
    }
    if (drops_counters) {
      auto& spec = object["spec"];
      spec.erase("sharedCounters");
      if (spec.contains("devices")) {
        for (auto& device : spec["devices"]) device.erase("consumesCounters");
      }
    }
    return object;
  }

  nlohmann::json put(nlohmann::json sent, bool creates) {
    auto object = as_kept(std::move(sent));
    object["metadata"]["resourceVersion"] = std::to_string(++version_);
    objects_[object["metadata"]["name"]] = object;
    events_.emplace_back(version_,
                         nlohmann::json{{"type", creates ? "ADDED" : "MODIFIED"}, {"object", object}}.dump());
    return object;
  }
  void erase(const std::string& name) {
    nlohmann::json object = objects_.at(name);
    objects_.erase(name);
    object["metadata"]["resourceVersion"] = std::to_string(++version_);
    events_.emplace_back(version_, nlohmann::json{{"type", "DELETED"}, {"object", object}}.dump());
  }

  std::mutex mutex_;
  std::map<std::string, nlohmann::json> objects_;
  std::vector<std::pair<int, std::string>> events_;
  int version_ = 1, writes_ = 0;
};

}  // namespace gpulet::dra::test
