#include "metrics_api/pod_list.h"

#include <array>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cluster/objects.h"

namespace gpulet::metrics_api {
namespace {

using cluster::member;
using cluster::text_of;
using nlohmann::json;

struct Listing {
  Asker& asker;
  std::string path;
  std::vector<ListedPod> pods;
  std::function<void(Result<std::vector<ListedPod>>)> done;
};

// Where each column of interest is.
struct Columns {
  std::optional<std::size_t> name, status, ip, node;
};

Columns columns_of(const json& definitions) {
  Columns columns;
  if (!definitions.is_array()) return columns;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    const std::string name = text_of(member(definitions[i], "name"));
    if (name == "Name") columns.name = i;
    if (name == "Status") columns.status = i;
    if (name == "IP") columns.ip = i;
    if (name == "Node") columns.node = i;
  }
  return columns;
}

std::string cell(const json& row, std::optional<std::size_t> column) {
  const json& cells = member(row, "cells");
  if (!column || !cells.is_array() || *column >= cells.size()) return {};
  const std::string text = text_of(cells[*column]);
  return text == "<none>" ? std::string() : text;
}

Status add_rows(const json& table, std::vector<ListedPod>& pods) {
  const json& rows = member(table, "rows");
  const Columns columns = columns_of(member(table, "columnDefinitions"));
  if (text_of(member(table, "kind")) != "Table" || !columns.name || !columns.ip || !columns.node) {
    return fail(Code::kIo, "the API server answered with what is no table of Pods");
  }
  if (!rows.is_array()) return {};  // null where there is none
  for (const auto& row : rows) {
    pods.push_back({.name = cell(row, columns.name),
                    .status = cell(row, columns.status),
                    .ip = cell(row, columns.ip),
                    .node = cell(row, columns.node)});
  }
  return {};
}

Error list_refusal(const cluster::ApiResponse& response) {
  if (response.status == 400) return {Code::kInvalidArgument, cluster::said(response)};
  if (response.status == 403)
    return {Code::kPermissionDenied, "needed is list on pods: " + cluster::said(response)};
  return {Code::kUnavailable, cluster::said(response)};
}

void go_on(const std::shared_ptr<Listing>& listing, const std::string& from) {
  cluster::ApiRequest request{
      .method = "GET",
      .path = listing->path + (from.empty() ? "" : "&continue=" + cluster::in_query(from)),
      .accept = "application/json;as=Table;g=meta.k8s.io;v=v1"};
  listing->asker.ask(std::move(request), [listing](const Result<cluster::ApiResponse>& response) {
    if (!response) return listing->done(fail(response.error()));
    if (response->status != 200) return listing->done(fail(list_refusal(*response)));
    const json table = json::parse(response->body, nullptr, false);
    if (const auto added = add_rows(table, listing->pods); !added) return listing->done(fail(added.error()));
    const std::string more = text_of(member(member(table, "metadata"), "continue"));
    if (more.empty()) return listing->done(std::move(listing->pods));
    if (listing->pods.size() >= kMaxListedPods) {
      return listing->done(fail(Code::kUnsupported, "more than 10000 Pods are selected"));
    }
    go_on(listing, more);
  });
}

}  // namespace

void list_pods(Asker& asker, const PodSelection& selection,
               std::function<void(Result<std::vector<ListedPod>>)> done) {
  std::string path =
      selection.name_space.empty() ? "/api/v1/pods" : "/api/v1/namespaces/" + selection.name_space + "/pods";
  path += "?includeObject=None&limit=" + std::to_string(kPodsOfPage);
  if (!selection.label_selector.empty())
    path += "&labelSelector=" + cluster::in_query(selection.label_selector);
  if (!selection.name.empty()) path += "&fieldSelector=metadata.name%3D" + cluster::in_query(selection.name);
  go_on(std::make_shared<Listing>(Listing{asker, std::move(path), {}, std::move(done)}), "");
}

}  // namespace gpulet::metrics_api
