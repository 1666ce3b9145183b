// Keeps the node's labels current in every configured output: the Node, a NodeFeature object, NFD's file
// (LabelFile), standard output. It never calls the driver and never blocks: an output that is unavailable has
// at most one pending set.
//
// Labels stay when the agent ends or is replaced, and while the driver is briefly unavailable: Pods placed by
// them must not move for that. They are removed when the driver reports no GPU, or is unavailable for
// kGpusGone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "config/config.h"
#include "inventory/snapshot.h"
#include "k8s/client_config.h"
#include "k8s/node_labels.h"

namespace gpulet::agent {

// Loop's thread only.
class LabelFile {
 public:
  // `settled` is called from the loop whenever the newest labels are on disk; may be empty.
  LabelFile(Loop& loop, std::string path, std::function<void()> settled = {},
            BackoffLimits backoff = {std::chrono::milliseconds(500), std::chrono::seconds(30)});
  ~LabelFile();
  LabelFile(const LabelFile&) = delete;

  const std::string& file_path() const { return path_; }
  // The newest set wins. Nothing is written before the first call, nor if the file already has these labels.
  void set_labels(std::map<std::string, std::string> labels);
  bool has_pending_labels() const { return desired_ != written_; }
  const std::string& last_problem() const { return problem_; }  // empty if none

 private:
  using Labels = std::map<std::string, std::string>;
  void write_labels();
  void on_written(const Status& status, const std::optional<Labels>& written);

  Loop& loop_;
  const std::string path_;
  std::function<void()> settled_;
  Backoff backoff_;
  std::optional<Labels> desired_, written_;
  bool writing_ = false;
  std::string problem_;
  std::shared_ptr<LoopRelay> relay_;
  Lifetime lifetime_;
  Subscription retry_;
};

// A burst of changes (a MIG layout) is published once, this long after the first.
inline constexpr Duration kLabelDelay = std::chrono::milliseconds(200);
inline constexpr Duration kGpusGone = std::chrono::minutes(5);

struct LabelControllerPorts {
  Loop& loop;
  // Null outside a cluster: then there is no Node or object to label.
  std::optional<k8s::ClientConfig> access;
  k8s::NodeFeatureTarget feature;
  // Gets the file's text if no file name is configured; may be empty.
  std::function<void(const std::string&)> print;
  // Called from the loop whenever all outputs have the newest labels; may be empty.
  std::function<void()> settled;
};

// Loop's thread only.
class LabelController {
 public:
  LabelController(LabelControllerPorts ports, config::Config config, k8s::SendTiming timing = {});
  ~LabelController();
  LabelController(const LabelController&) = delete;

  // The newest snapshot, null before the first; whether the driver answers; the Node's labels. Cheap if
  // nothing has changed.
  void on_node_changed(inventory::SnapshotPtr snapshot, bool driver_answers,
                       const std::map<std::string, std::string>& node_labels);
  // Applies a changed config. An output that it no longer names loses its labels.
  void apply_label_config(config::Config config);
  // Checks that the outputs in the cluster still have the labels.
  void verify_outputs();

  // As last published; nullopt before.
  const std::optional<std::map<std::string, std::string>>& published_labels() const { return labels_; }
  bool has_pending_outputs() const;
  // Why an output is pending; empty if none is.
  std::string last_problem() const;

 private:
  using Labels = std::map<std::string, std::string>;
  bool has_output(config::LabelOutput output) const;
  void create_outputs();
  void publish_soon();
  void publish_labels();
  void send_to_outputs(bool prints);
  void on_output_settled();
  bool are_missing_on_node(const Labels& node_labels) const;

  LabelControllerPorts ports_;
  config::Config config_;
  k8s::SendTiming timing_;
  std::int64_t timestamp_ = 0;
  inventory::SnapshotPtr snapshot_;
  bool gone_ = false;
  Labels node_labels_;
  std::optional<Labels> labels_;
  std::string printed_;
  bool no_cluster_reported_ = false;
  std::unique_ptr<k8s::NodeLabels> node_;
  std::unique_ptr<k8s::NodeFeature> feature_;
  std::unique_ptr<LabelFile> file_;
  std::vector<std::unique_ptr<LabelFile>> former_files_;  // of earlier names, until they are removed
  Subscription publish_timer_, gone_timer_;
};

}  // namespace gpulet::agent
