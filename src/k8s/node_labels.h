// Publishes labels of this node: on the Node itself, by server-side apply or single patches, or as a
// NodeFeature of Node Feature Discovery. Source: Kubernetes API concepts, "Server-Side Apply"; NFD API
// nfd.k8s-sigs.io/v1alpha1.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

// A set of labels as desired, and as last written.
class DesiredLabels {
 public:
  using Labels = std::map<std::string, std::string>;

  // False if they were already desired.
  bool set_desired(Labels labels) {
    if (desired_ == labels) return false;
    desired_ = std::move(labels);
    return true;
  }
  // What was written may have changed since: write again.
  void request_recheck() { recheck_ = true; }

  bool needs_write() const { return desired_ && (!is_up_to_date() || recheck_); }
  bool is_up_to_date() const { return written_ == desired_; }
  // Precondition: needs_write().
  const Labels& operator*() const { return *desired_; }
  const Labels* operator->() const { return &*desired_; }

  // `sent` has been written. True if that is what is desired now.
  bool mark_written(const Labels& sent) {
    written_ = sent;
    if (!is_up_to_date()) return false;
    recheck_ = false;
    return true;
  }

 private:
  std::optional<Labels> desired_, written_;
  bool recheck_ = false;
};

// The field manager of the Node's labels.

inline constexpr const char* kLabelFieldManager = "gpulet-labels";

// Owns a set of labels of the Node, also across restarts: the API server tracks them under
// kLabelFieldManager and removes those that are no longer applied. Other labels are never touched. The Node
// is read first, and its uid sent along, so that applying never creates a Node. Needs get and patch on
// nodes. Loop's thread only.
class NodeLabels {
 public:
  // Calls `settled`, which may be empty, from the loop each time the newest set has been written.
  static std::unique_ptr<NodeLabels> start_labels(Loop& loop, ClientConfig access,
                                                  std::function<void()> settled = {}, SendTiming timing = {});
  virtual ~NodeLabels() = default;

  // Replaces the set, and takes over labels that others have set. Never blocks; the newest set wins and is
  // retried until it is written. Nothing is written before the first call.
  virtual void set_labels(std::map<std::string, std::string> labels) = 0;
  // Reads the labels and writes them again if they are missing, as on a Node that was created again.
  virtual void recheck_labels() = 0;

  virtual SendStatus label_status() const = 0;
};

struct NodeLabelPatchTiming {
  Duration request_limit = std::chrono::seconds(10);
  BackoffLimits backoff{std::chrono::milliseconds(500), std::chrono::seconds(30)};
};

// Sets and removes single labels, or annotations, of the Node. Needs patch on nodes. Loop's thread only.
class NodeLabelPatcher {
 public:
  static std::unique_ptr<NodeLabelPatcher> start_label_patcher(Loop& loop, ClientConfig access,
                                                               NodeLabelPatchTiming timing = {});
  // The same for annotations: set_label() sets one.
  static std::unique_ptr<NodeLabelPatcher> start_annotation_patcher(Loop& loop, ClientConfig access,
                                                                    NodeLabelPatchTiming timing = {});
  virtual ~NodeLabelPatcher() = default;

  // nullopt removes the label. The newest value wins. All labels set in one turn of the loop are one
  // request, which is retried until the API server accepts it. An accepted value is not sent again.
  virtual void set_label(const std::string& key, std::optional<std::string> value) = 0;
};

struct NodeFeatureTarget {
  std::string name_space = "default";
  // The agent's Pod in that namespace. It and its owners own the object, which is deleted with the
  // DaemonSet. Empty: no owner.
  std::string pod;
};

// Publishes the labels as the NodeFeature "nvidia-features-for-<node>", as NVIDIA's feature discovery does;
// NFD's master copies them to the Node. Needs get, create and update on nodefeatures.nfd.k8s-sigs.io in its
// namespace, and get on pods for its owners. Loop's thread only.
class NodeFeature {
 public:
  // Calls `settled`, which may be empty, from the loop each time the newest labels have been written.
  static std::unique_ptr<NodeFeature> start_node_feature(Loop& loop, ClientConfig access,
                                                         NodeFeatureTarget place,
                                                         std::function<void()> settled = {},
                                                         SendTiming timing = {});
  virtual ~NodeFeature() = default;

  // Replaces the labels. Without labels an existing object becomes empty, as deleting may not be permitted,
  // and no object is created. Never blocks; the newest labels win and are retried until they are written.
  // Unchanged labels are not written.
  virtual void set_feature_labels(std::map<std::string, std::string> labels) = 0;
  // Reads the object and writes it again if it differs.
  virtual void recheck_feature() = 0;

  virtual SendStatus feature_status() const = 0;
};

}  // namespace gpulet::k8s
