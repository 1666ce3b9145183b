// Concurrent requests to the API server, and the list of Pods that they fetch.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"

namespace gpulet::metrics_api {

// Concurrent requests to the API server over several connections. Never retries.

struct RequestPoolLimits {
  std::size_t connections = 4;
  std::size_t queued = 256;                         // beyond those in flight
  Duration timeout = std::chrono::seconds(5);       // of one request, from when it is sent
  Duration idle_timeout = std::chrono::seconds(5);  // of connections
};

// Loop thread only.
class RequestPool {
 public:
  using Done = std::function<void(Result<http::ClientResponse>)>;

  RequestPool(Loop& loop, const k8s::ClientConfig& access, RequestPoolLimits limits);
  RequestPool(const RequestPool&) = delete;

  // `done` is called once from the loop, never from inside this call and never after this object is gone.
  // Errors: those of ApiClient; kUnavailable if too many requests wait.
  void submit_request(k8s::ApiRequest request, Done done);

 private:
  struct Connection {
    std::unique_ptr<k8s::ApiClient> client;
    bool busy = false;
  };
  struct QueuedRequest {
    k8s::ApiRequest request;
    Done done;
  };
  void start_requests();
  void on_response(Connection& line, const Done& done, Result<http::ClientResponse> response);

  Loop& loop_;
  const RequestPoolLimits limits_;
  std::vector<Connection> connections_;
  std::deque<QueuedRequest> queue_;
  std::deque<std::function<void()>> rejected_;
  Subscription start_timer_, close_timer_;
};

// Lists Pods with only what is needed: where they run. As a table without the objects, 500 Pods are some 100
// KB instead of many megabytes; the API server evaluates label selectors.
// Source: Kubernetes API concepts, "Receiving resources as Tables"; columns of a Pod table: Name, Status,
// IP, Node. Needs list on pods.

inline constexpr std::size_t kPodsPerPage = 500;
inline constexpr std::size_t kMaxListedPods = 20 * kPodsPerPage;

struct ListedPod {
  std::string name, status;
  std::string ip, node;  // empty until assigned
};

struct PodSelection {
  std::string name_space;      // empty: all namespaces
  std::string label_selector;  // empty: all Pods
  std::string name;            // empty: any name
};

// `done` is called once from the loop. Errors: kInvalidArgument with the API server's message for an invalid
// selector; kPermissionDenied; kUnavailable and those of the connection; kUnsupported above kMaxListedPods.
void list_pods(RequestPool& asker, const PodSelection& selection,
               std::function<void(Result<std::vector<ListedPod>>)> done);

}  // namespace gpulet::metrics_api
