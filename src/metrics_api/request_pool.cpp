#include "metrics_api/request_pool.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "k8s/objects.h"

namespace gpulet::metrics_api {

RequestPool::RequestPool(Loop& loop, const k8s::ClientConfig& access, RequestPoolLimits limits)
    : loop_(loop), limits_(limits) {
  for (std::size_t i = 0; i < limits_.connections; ++i) {
    connections_.push_back({std::make_unique<k8s::ApiClient>(loop, access, limits_.timeout), false});
  }
}

void RequestPool::submit_request(k8s::ApiRequest request, Done done) {
  if (queue_.size() >= limits_.queued) {
    rejected_.push_back([done = std::move(done)] {
      done(fail(Code::kUnavailable, "too many requests are waiting for the API server"));
    });
  } else {
    queue_.push_back({std::move(request), std::move(done)});
  }
  if (!start_timer_) start_timer_ = loop_.after(Duration::zero(), [this] { start_requests(); });
}

// On its own loop turn: a callback may submit again, or destroy this object.
void RequestPool::start_requests() {
  start_timer_.reset();
  close_timer_.reset();
  for (auto& connection : connections_) {
    if (connection.busy) continue;
    if (queue_.empty()) break;
    QueuedRequest next = std::move(queue_.front());
    queue_.pop_front();
    connection.busy = true;
    connection.client->send_request(next.request, [this, &connection, done = std::move(next.done)](
                                                      Result<http::ClientResponse> response) {
      on_response(connection, done, std::move(response));
    });
  }
  if (std::ranges::none_of(connections_, &Connection::busy)) {
    close_timer_ = loop_.after(limits_.idle_timeout, [this] {
      for (auto& connection : connections_) connection.client->close_connection();
    });
  }
  if (rejected_.empty()) return;
  const auto refused = std::move(rejected_.front());
  rejected_.pop_front();
  if (!rejected_.empty()) start_timer_ = loop_.after(Duration::zero(), [this] { start_requests(); });
  refused();
}

void RequestPool::on_response(Connection& connection, const Done& done,
                              Result<http::ClientResponse> response) {
  connection.busy = false;
  if (!start_timer_) start_timer_ = loop_.after(Duration::zero(), [this] { start_requests(); });
  done(std::move(response));
}

namespace {

using nlohmann::json;

struct PodListing {
  RequestPool& requests;
  std::string path;
  std::vector<ListedPod> pods;
  std::function<void(Result<std::vector<ListedPod>>)> done;
};

// Indices of the needed columns.
struct Columns {
  std::optional<std::size_t> name, status, ip, node;
};

Columns find_columns(const json& definitions) {
  Columns columns;
  if (!definitions.is_array()) return columns;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    const std::string name = json_text(json_member(definitions[i], "name"));
    if (name == "Name") columns.name = i;
    if (name == "Status") columns.status = i;
    if (name == "IP") columns.ip = i;
    if (name == "Node") columns.node = i;
  }
  return columns;
}

std::string cell_text(const json& row, std::optional<std::size_t> column) {
  const json& cells = json_member(row, "cells");
  if (!column || !cells.is_array() || *column >= cells.size()) return {};
  const std::string text = json_text(cells[*column]);
  return text == "<none>" ? std::string() : text;
}

Status add_table_rows(const json& table, std::vector<ListedPod>& pods) {
  const json& rows = json_member(table, "rows");
  const Columns columns = find_columns(json_member(table, "columnDefinitions"));
  if (json_text(json_member(table, "kind")) != "Table" || !columns.name || !columns.ip || !columns.node) {
    return fail(Code::kIo, "the API server's response is not a table of Pods");
  }
  if (!rows.is_array()) return {};  // null for an empty list
  for (const auto& row : rows) {
    pods.push_back({.name = cell_text(row, columns.name),
                    .status = cell_text(row, columns.status),
                    .ip = cell_text(row, columns.ip),
                    .node = cell_text(row, columns.node)});
  }
  return {};
}

Error list_error(const http::ClientResponse& response) {
  if (response.status == 400) return {Code::kInvalidArgument, k8s::describe_response(response)};
  if (response.status == 403)
    return {Code::kPermissionDenied, "missing permission: list on pods: " + k8s::describe_response(response)};
  return {Code::kUnavailable, k8s::describe_response(response)};
}

void request_page(const std::shared_ptr<PodListing>& listing, const std::string& from) {
  k8s::ApiRequest request{
      .method = "GET",
      .path = listing->path + (from.empty() ? "" : "&continue=" + k8s::encode_query_value(from)),
      .accept = "application/json;as=Table;g=meta.k8s.io;v=v1"};
  listing->requests.submit_request(
      std::move(request), [listing](const Result<http::ClientResponse>& response) {
        if (!response) return listing->done(fail(response.error()));
        if (response->status != 200) return listing->done(fail(list_error(*response)));
        const json table = parse_json(response->body);
        if (const auto added = add_table_rows(table, listing->pods); !added)
          return listing->done(fail(added.error()));
        const std::string more = json_text(json_member(json_member(table, "metadata"), "continue"));
        if (more.empty()) return listing->done(std::move(listing->pods));
        if (listing->pods.size() >= kMaxListedPods) {
          return listing->done(fail(Code::kUnsupported, "the selector matches more than 10000 Pods"));
        }
        request_page(listing, more);
      });
}

}  // namespace

void list_pods(RequestPool& asker, const PodSelection& selection,
               std::function<void(Result<std::vector<ListedPod>>)> done) {
  std::string path =
      selection.name_space.empty() ? "/api/v1/pods" : "/api/v1/namespaces/" + selection.name_space + "/pods";
  path += "?includeObject=None&limit=" + std::to_string(kPodsPerPage);
  if (!selection.label_selector.empty())
    path += "&labelSelector=" + k8s::encode_query_value(selection.label_selector);
  if (!selection.name.empty())
    path += "&fieldSelector=metadata.name%3D" + k8s::encode_query_value(selection.name);
  request_page(std::make_shared<PodListing>(PodListing{asker, std::move(path), {}, std::move(done)}), "");
}

}  // namespace gpulet::metrics_api
