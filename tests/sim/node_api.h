// An API server with one Node, for agents and programs that follow its labels.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/test_certificate.h"
#include "k8s/test_api_server.h"

namespace gpulet::tests {

// The Node "node-1", for a client with every permission. Everything else that `others` does not answer is
// 404.
class NodeApi {
 public:
  using Others = std::function<std::optional<k8s::TestApiServer::Reply>(const k8s::Received&)>;
  // Writes its certificate authority and kubeconfig() into `directory`.
  explicit NodeApi(const std::string& directory, Others others = {})
      : others_(std::move(others)), kubeconfig_(directory + "/kubeconfig") {
    server_ = std::make_unique<k8s::TestApiServer>(
        certificate_, [this](const k8s::Received& request) { return reply_to(request); });
    EXPECT_TRUE(write_file_atomic(directory + "/ca.crt", authority_.pem()));
    EXPECT_TRUE(write_file_atomic(
        kubeconfig_,
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], clusters: [{name: k, "
        "cluster: {server: 'https://127.0.0.1:" +
            std::to_string(server_->port()) + "', certificate-authority: " + directory +
            "/ca.crt}}], users: [{name: u, user: {token: t}}]}"));
  }

  const std::string& kubeconfig() const { return kubeconfig_; }
  void set_label(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    ++version_;
    labels_[key] = value;
  }
  // The bodies of requests whose line, "POST /api/v1/… HTTP/1.1", contains `part`.
  std::vector<std::string> request_bodies(const std::string& part) {
    std::vector<std::string> found;
    for (const auto& request : server_->received_requests()) {
      if (request.line().find(part) != std::string::npos) found.push_back(request.body);
    }
    return found;
  }

 private:
  std::string node_object() {
    const std::lock_guard lock(mutex_);
    std::string labels;
    for (const auto& [key, value] : labels_)
      labels += (labels.empty() ? "\"" : ",\"") + key + "\":\"" + value + "\"";
    return R"({"metadata":{"name":"node-1","uid":"6f2c0a1e-9d3b-4c57-8e21-5a7b9c0d1e2f")"
           R"(,"resourceVersion":")" +
           std::to_string(version_) + R"(","labels":{)" + labels +
           R"(}},"spec":{"taints":[]},"status":{"conditions":[]}})";
  }
  k8s::TestApiServer::Reply reply_to(const k8s::Received& request) {
    if (others_) {
      if (auto reply = others_(request)) return *std::move(reply);
    }
    const std::string line = request.line();
    if (line.find("/selfsubjectaccessreviews") != std::string::npos)
      return {201, R"({"status":{"allowed":true}})"};
    if (line.find("/nodes") == std::string::npos) return {404, R"({"kind":"Status"})"};
    if (line.find("/nodes?") == std::string::npos) return {200, node_object()};
    if (line.find("watch=true") == std::string::npos) {
      return {200, R"({"metadata":{"resourceVersion":")" + std::to_string(version_) + R"("},"items":[)" +
                       node_object() + "]}"};
    }
    // The watch begins at the version of the list: a change in between is an event.
    constexpr std::string_view kFrom = "resourceVersion=";
    const auto from = line.find(kFrom);
    int listed = 0;
    if (from != std::string::npos)
      std::from_chars(line.data() + from + kFrom.size(), line.data() + line.size(), listed);
    return {.status = 200, .script = [this, seen = listed](k8s::TestApiServer::Stream& stream) mutable {
              while (stream.wait_open(5)) {
                if (version_ == seen) continue;
                seen = version_;
                stream.chunk(R"({"type":"MODIFIED","object":)" + node_object() + "}\n");
              }
              return false;
            }};
  }

  const Others others_;
  const std::string kubeconfig_;
  static constexpr long kValidSeconds = 30 * 86'400;  // for agents whose clock is wrong, too
  const Certificate authority_ = Certificate::make_certificate("kubernetes", nullptr, "", kValidSeconds);
  const Certificate certificate_ =
      Certificate::make_certificate("apiserver", &authority_, "127.0.0.1", kValidSeconds);
  std::mutex mutex_;
  std::atomic<int> version_{1};
  std::map<std::string, std::string> labels_;
  std::unique_ptr<k8s::TestApiServer> server_;  // last: its threads use the others
};

}  // namespace gpulet::tests
