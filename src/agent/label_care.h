// Keeps the node's labels as its GPUs, its driver and its configuration are, wherever the configuration wants
// them: the Node, an object of NFD, NFD's file, standard output. It never asks the driver and never blocks:
// what an output cannot take now waits in it, one set at the most.
//
// Labels stay when the agent ends or is replaced, and while the driver is away for a short time: Pods that
// were placed by them must not move for that. They go when the driver says that there is no GPU, or does not
// answer for kGpusGone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/label_file.h"
#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/node_feature.h"
#include "cluster/node_labels.h"
#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// Changes that come in a burst (a MIG layout) are told once, this long after the first.
inline constexpr Duration kLabelDelay = std::chrono::milliseconds(200);
inline constexpr Duration kGpusGone = std::chrono::minutes(5);

struct LabelCarePorts {
  Loop& loop;
  // Null outside a cluster: then there is neither a Node nor an object to label.
  std::optional<cluster::Access> access;
  cluster::NodeFeaturePlace feature;
  // Takes the file's text where its name is empty; may be empty itself.
  std::function<void(const std::string&)> print;
  // Called from the loop each time that all outputs have taken the newest labels; may be empty.
  std::function<void()> settled;
};

// Loop's thread only.
class LabelCare {
 public:
  LabelCare(LabelCarePorts ports, config::Config config, cluster::SendTiming timing = {});
  ~LabelCare();
  LabelCare(const LabelCare&) = delete;

  // What the agent knows now: the newest reading, null before the first; whether the driver answers; the
  // Node's labels, as the API server says them. Cheap where nothing has changed.
  void update(inventory::SnapshotPtr snapshot, bool driver_answers,
              const std::map<std::string, std::string>& node_labels);
  // A changed configuration. An output that it no longer names loses its labels.
  void apply(config::Config config);
  // Looks whether the outputs that are not this process's alone still have them.
  void look_again();

  // As last told; nothing before the first time.
  const std::optional<std::map<std::string, std::string>>& labels() const { return labels_; }
  bool waiting() const;
  // What stands in the way of an output; empty while nothing does.
  std::string trouble() const;

 private:
  using Labels = std::map<std::string, std::string>;
  bool wants(config::LabelOutput output) const;
  void begin();
  void soon();
  void tell();
  void put(bool prints);
  void on_settled();
  bool lost_on_node(const Labels& node_labels) const;

  LabelCarePorts ports_;
  config::Config config_;
  cluster::SendTiming timing_;
  std::int64_t timestamp_ = 0;
  inventory::SnapshotPtr snapshot_;
  bool gone_ = false;
  Labels node_labels_;
  std::optional<Labels> labels_;
  std::string printed_;
  bool no_cluster_told_ = false;
  std::unique_ptr<cluster::NodeLabels> node_;
  std::unique_ptr<cluster::NodeFeature> feature_;
  std::unique_ptr<LabelFile> file_;
  std::vector<std::unique_ptr<LabelFile>> former_files_;  // of other names: taken away, or on the way to it
  Subscription soon_, gone_timer_;
};

}  // namespace gpulet::agent
