#include "agent/label_care.h"

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "labels/labels.h"

namespace gpulet::agent {
namespace {

using config::LabelOutput;

std::optional<std::string> machine_of(const std::string& file) {
  if (file.empty()) return std::nullopt;
  auto content = read_file(file);
  return content ? std::optional(std::move(*content)) : std::nullopt;
}

}  // namespace

LabelCare::LabelCare(LabelCarePorts ports, config::Config config, cluster::SendTiming timing)
    : ports_(std::move(ports)), config_(std::move(config)), timing_(timing) {
  begin();
}

LabelCare::~LabelCare() = default;

bool LabelCare::wants(LabelOutput output) const {
  return std::ranges::count(config_.gpulet.labels.outputs, output) != 0;
}

// Of a new configuration: its own time, and its own outputs. One that lost its place goes on until it is
// empty.
void LabelCare::begin() {
  using std::chrono::duration_cast;
  timestamp_ = duration_cast<std::chrono::seconds>(ports_.loop.wall_now().time_since_epoch()).count();
  const auto settled = [this] { on_settled(); };
  const bool remote = wants(LabelOutput::kNode) || wants(LabelOutput::kNodeFeature);
  if (remote && !ports_.access && !std::exchange(no_cluster_told_, true)) {
    log::debug("there is no cluster to tell the node's labels");
  }
  if (ports_.access && wants(LabelOutput::kNode) && !node_) {
    node_ = cluster::NodeLabels::start(ports_.loop, *ports_.access, settled, timing_);
  }
  if (ports_.access && wants(LabelOutput::kNodeFeature) && !feature_) {
    feature_ = cluster::NodeFeature::start(ports_.loop, *ports_.access, ports_.feature, settled, timing_);
  }
  const auto& path = config_.gfd.output_file;
  const bool to_file = wants(LabelOutput::kFile) && !path.empty();
  if (to_file && (!file_ || file_->path() != path)) {
    if (file_) {
      file_->set({});
      former_files_.push_back(std::move(file_));
    }
    file_ = std::make_unique<LabelFile>(ports_.loop, path, settled, timing_.backoff);
  }
}

void LabelCare::apply(config::Config config) {
  config_ = std::move(config);
  begin();
  if (snapshot_ || gone_) soon();
}

void LabelCare::update(inventory::SnapshotPtr snapshot, bool driver_answers, const Labels& node_labels) {
  if (driver_answers) {
    gone_timer_.reset();
    gone_ = false;
  } else if (!gone_ && !gone_timer_) {
    gone_timer_ = ports_.loop.after(kGpusGone, [this] {
      gone_timer_.reset();
      gone_ = true;
      soon();
    });
  }
  // Ours among them say nothing new, but one that is missing does.
  if (node_ && lost_on_node(node_labels)) node_->look_again();
  if (snapshot == snapshot_ && node_labels == node_labels_) return;
  snapshot_ = std::move(snapshot);
  node_labels_ = node_labels;
  if (snapshot_ && driver_answers) soon();
}

// Whether a label that has been there is there no more. Before the first answer of the watch it is not known.
bool LabelCare::lost_on_node(const Labels& node_labels) const {
  if (node_labels == node_labels_ || node_labels.empty() || !labels_ || node_->delivery().waiting)
    return false;
  return std::ranges::any_of(*labels_, [&](const auto& label) {
    return node_labels_.contains(label.first) && !node_labels.contains(label.first);
  });
}

void LabelCare::look_again() {
  if (node_ && wants(LabelOutput::kNode)) node_->look_again();
  if (feature_ && wants(LabelOutput::kNodeFeature)) feature_->look_again();
}

void LabelCare::soon() {
  if (!soon_) soon_ = ports_.loop.after(kLabelDelay, [this] { tell(); });
}

void LabelCare::tell() {
  soon_.reset();
  Labels now;
  const bool prints = wants(LabelOutput::kFile) && config_.gfd.output_file.empty() && ports_.print;
  const bool heard = node_ || feature_ || file_ || prints;
  if (heard && snapshot_ && !gone_) {
    std::optional<std::int64_t> timestamp;
    if (!config_.gfd.no_timestamp) timestamp = timestamp_;
    now = labels::plain(labels::labels_of(
        {*snapshot_, config_, node_labels_, machine_of(config_.gfd.machine_type_file), timestamp}));
  }
  if (heard && labels_ != now) log::info("the node's labels", {{"labels", now.size()}});
  labels_ = std::move(now);
  put(prints);
}

void LabelCare::put(bool prints) {
  const auto labels_for = [this](LabelOutput output) { return wants(output) ? *labels_ : Labels(); };
  if (node_) node_->set(labels_for(LabelOutput::kNode));
  if (feature_) feature_->set(labels_for(LabelOutput::kNodeFeature));
  if (file_) file_->set(labels_for(LabelOutput::kFile));
  if (prints) {
    const auto text = labels::features_text(*labels_);
    if (std::exchange(printed_, text) != text) ports_.print(text);
  }
  on_settled();
}

bool LabelCare::waiting() const {
  if (!labels_ || soon_) return true;
  return (node_ && node_->delivery().waiting) || (feature_ && feature_->delivery().waiting) ||
         (file_ && file_->waiting());
}

std::string LabelCare::trouble() const {
  if (node_ && node_->delivery().waiting) return node_->delivery().trouble;
  if (feature_ && feature_->delivery().waiting) return feature_->delivery().trouble;
  return file_ ? file_->trouble() : std::string();
}

void LabelCare::on_settled() {
  if (!waiting() && ports_.settled) ports_.loop.post(ports_.settled);
}

}  // namespace gpulet::agent
