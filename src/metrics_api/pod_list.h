// Pods as the API server lists them, with as little of each as is needed: where it runs. Asked for as a table
// without the objects, 500 Pods are some 100 KB, where the Pods themselves would be many megabytes; and label
// selectors are understood by the API server, which has the rule for them.
// Source: Kubernetes API concepts, "Receiving resources as Tables"; columns of a Pod's table: Name, Status,
// IP, Node. Needs list on pods.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "metrics_api/asker.h"

namespace gpulet::metrics_api {

inline constexpr std::size_t kPodsOfPage = 500;
inline constexpr std::size_t kMaxListedPods = 20 * kPodsOfPage;

struct ListedPod {
  std::string name, status;
  std::string ip, node;  // empty while it has none
};

struct PodSelection {
  std::string name_space;      // empty: every namespace
  std::string label_selector;  // empty: every Pod
  std::string name;            // empty: of any name
};

// `done` is called once, from the loop. Errors: kInvalidArgument with the API server's words for a selector
// that it does not take; kPermissionDenied; kUnavailable and those of the connection; kUnsupported when there
// are more than kMaxListedPods.
void list_pods(Asker& asker, const PodSelection& selection,
               std::function<void(Result<std::vector<ListedPod>>)> done);

}  // namespace gpulet::metrics_api
