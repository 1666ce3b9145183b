#include "agent/publish/label_controller.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "labels/labels.h"

namespace gpulet::agent {
namespace {

Status write_label_file(const std::string& path, const std::map<std::string, std::string>& labels) {
  if (!labels.empty()) return write_file_atomic(path, labels::features_text(labels));
  if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
  return fail(errno_error("cannot be removed", errno, path));
}

}  // namespace

LabelFile::LabelFile(Loop& loop, std::string path, std::function<void()> settled, BackoffLimits backoff)
    : loop_(loop),
      path_(std::move(path)),
      settled_(std::move(settled)),
      backoff_(backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())),
      relay_(std::make_shared<LoopRelay>(loop)) {}

LabelFile::~LabelFile() { relay_->close_relay(); }

void LabelFile::set_labels(Labels labels) {
  if (desired_ == labels) return;
  desired_ = std::move(labels);
  retry_.reset();
  if (!writing_) write_labels();
}

void LabelFile::write_labels() {
  retry_.reset();
  writing_ = true;
  const auto answer = [this, written = desired_, alive = lifetime_.watch()](const Status& status) {
    if (alive) on_written(status, written);
  };
  const auto started =
      start_detached_thread("the file of labels", [relay = relay_, path = path_, labels = *desired_, answer] {
        relay->post_to_loop([answer, status = write_label_file(path, labels)] { answer(status); });
      });
  if (!started) loop_.post([answer, started] { answer(started); });
}

void LabelFile::on_written(const Status& status, const std::optional<Labels>& written) {
  writing_ = false;
  if (!status) {
    if (std::exchange(problem_, status.error().full_message()).empty()) {
      log::warning("cannot write the label file; retrying", status.error());
    }
    retry_ = loop_.after(backoff_.next_delay(), [this] { write_labels(); });
    return;
  }
  problem_.clear();
  backoff_.reset();
  written_ = written;
  if (has_pending_labels()) return write_labels();
  if (settled_) settled_();
}

namespace {

using config::LabelOutput;

std::optional<std::string> machine_of(const std::string& file) {
  if (file.empty()) return std::nullopt;
  auto content = read_file(file);
  return content ? std::optional(std::move(*content)) : std::nullopt;
}

}  // namespace

LabelController::LabelController(LabelControllerPorts ports, config::Config config, k8s::SendTiming timing)
    : ports_(std::move(ports)), config_(std::move(config)), timing_(timing) {
  create_outputs();
}

LabelController::~LabelController() = default;

bool LabelController::has_output(LabelOutput output) const {
  return std::ranges::count(config_.gpulet.labels.outputs, output) != 0;
}

// Creates the outputs of the config. An output that is no longer configured stays until it is empty.
void LabelController::create_outputs() {
  using std::chrono::duration_cast;
  timestamp_ = duration_cast<std::chrono::seconds>(ports_.loop.wall_now().time_since_epoch()).count();
  const auto settled = [this] { on_output_settled(); };
  const bool remote = has_output(LabelOutput::kNode) || has_output(LabelOutput::kNodeFeature);
  if (remote && !ports_.access && !std::exchange(no_cluster_reported_, true)) {
    log::debug("no API server: node labels are not published to the cluster");
  }
  if (ports_.access && has_output(LabelOutput::kNode) && !node_) {
    node_ = k8s::NodeLabels::start_labels(ports_.loop, *ports_.access, settled, timing_);
  }
  if (ports_.access && has_output(LabelOutput::kNodeFeature) && !feature_) {
    feature_ =
        k8s::NodeFeature::start_node_feature(ports_.loop, *ports_.access, ports_.feature, settled, timing_);
  }
  const auto& path = config_.gfd.output_file;
  const bool to_file = has_output(LabelOutput::kFile) && !path.empty();
  if (to_file && (!file_ || file_->file_path() != path)) {
    if (file_) {
      file_->set_labels({});
      former_files_.push_back(std::move(file_));
    }
    file_ = std::make_unique<LabelFile>(ports_.loop, path, settled, timing_.backoff);
  }
}

void LabelController::apply_label_config(config::Config config) {
  config_ = std::move(config);
  create_outputs();
  if (snapshot_ || gone_) publish_soon();
}

void LabelController::on_node_changed(inventory::SnapshotPtr snapshot, bool driver_answers,
                                      const Labels& node_labels) {
  if (driver_answers) {
    gone_timer_.reset();
    gone_ = false;
  } else if (!gone_ && !gone_timer_) {
    gone_timer_ = ports_.loop.after(kGpusGone, [this] {
      gone_timer_.reset();
      gone_ = true;
      publish_soon();
    });
  }
  // Our own labels change nothing; a missing one does.
  if (node_ && are_missing_on_node(node_labels)) node_->recheck_labels();
  if (snapshot == snapshot_ && node_labels == node_labels_) return;
  snapshot_ = std::move(snapshot);
  node_labels_ = node_labels;
  if (snapshot_ && driver_answers) publish_soon();
}

// Whether one of the agent's labels was removed from the Node. Unknown before the watch's first list.
bool LabelController::are_missing_on_node(const Labels& node_labels) const {
  if (node_labels == node_labels_ || node_labels.empty() || !labels_ || node_->label_status().pending)
    return false;
  return std::ranges::any_of(*labels_, [&](const auto& label) {
    return node_labels_.contains(label.first) && !node_labels.contains(label.first);
  });
}

void LabelController::verify_outputs() {
  if (node_ && has_output(LabelOutput::kNode)) node_->recheck_labels();
  if (feature_ && has_output(LabelOutput::kNodeFeature)) feature_->recheck_feature();
}

void LabelController::publish_soon() {
  if (!publish_timer_) publish_timer_ = ports_.loop.after(kLabelDelay, [this] { publish_labels(); });
}

void LabelController::publish_labels() {
  publish_timer_.reset();
  Labels now;
  const bool prints = has_output(LabelOutput::kFile) && config_.gfd.output_file.empty() && ports_.print;
  const bool heard = node_ || feature_ || file_ || prints;
  if (heard && snapshot_ && !gone_) {
    std::optional<std::int64_t> timestamp;
    if (!config_.gfd.no_timestamp) timestamp = timestamp_;
    now = labels::plain_labels(labels::build_labels(
        {*snapshot_, config_, node_labels_, machine_of(config_.gfd.machine_type_file), timestamp}));
  }
  if (heard && labels_ != now) log::info("node labels updated", {{"labels", now.size()}});
  labels_ = std::move(now);
  send_to_outputs(prints);
}

void LabelController::send_to_outputs(bool prints) {
  const auto labels_for = [this](LabelOutput output) { return has_output(output) ? *labels_ : Labels(); };
  if (node_) node_->set_labels(labels_for(LabelOutput::kNode));
  if (feature_) feature_->set_feature_labels(labels_for(LabelOutput::kNodeFeature));
  if (file_) file_->set_labels(labels_for(LabelOutput::kFile));
  if (prints) {
    const auto text = labels::features_text(*labels_);
    if (std::exchange(printed_, text) != text) ports_.print(text);
  }
  on_output_settled();
}

bool LabelController::has_pending_outputs() const {
  if (!labels_ || publish_timer_) return true;
  return (node_ && node_->label_status().pending) || (feature_ && feature_->feature_status().pending) ||
         (file_ && file_->has_pending_labels());
}

std::string LabelController::last_problem() const {
  if (node_ && node_->label_status().pending) return node_->label_status().error;
  if (feature_ && feature_->feature_status().pending) return feature_->feature_status().error;
  return file_ ? file_->last_problem() : std::string();
}

void LabelController::on_output_settled() {
  if (!has_pending_outputs() && ports_.settled) ports_.loop.post(ports_.settled);
}

}  // namespace gpulet::agent
