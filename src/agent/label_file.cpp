#include "agent/label_file.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "labels/labels.h"

namespace gpulet::agent {
namespace {

Status put(const std::string& path, const std::map<std::string, std::string>& labels) {
  if (!labels.empty()) return write_file_atomic(path, labels::features_text(labels));
  if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
  return fail(errno_error("cannot be taken away", errno, path));
}

}  // namespace

LabelFile::LabelFile(Loop& loop, std::string path, std::function<void()> settled, BackoffLimits backoff)
    : loop_(loop),
      path_(std::move(path)),
      settled_(std::move(settled)),
      backoff_(backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())),
      relay_(std::make_shared<Relay>(loop)) {}

LabelFile::~LabelFile() { relay_->close(); }

void LabelFile::set(Labels labels) {
  if (wanted_ == labels) return;
  wanted_ = std::move(labels);
  retry_.reset();
  if (!writing_) write();
}

void LabelFile::write() {
  retry_.reset();
  writing_ = true;
  const auto answer = [this, written = wanted_, alive = std::weak_ptr(alive_)](const Status& status) {
    if (!alive.expired()) on_written(status, written);
  };
  const auto started =
      start_detached("the file of labels", [relay = relay_, path = path_, labels = *wanted_, answer] {
        relay->post([answer, status = put(path, labels)] { answer(status); });
      });
  if (!started) loop_.post([answer, started] { answer(started); });
}

void LabelFile::on_written(const Status& status, const std::optional<Labels>& written) {
  writing_ = false;
  if (!status) {
    if (std::exchange(trouble_, status.error().text()).empty()) {
      log::warning("the file of labels cannot be written; trying again", status.error());
    }
    retry_ = loop_.after(backoff_.next(), [this] { write(); });
    return;
  }
  trouble_.clear();
  backoff_.reset();
  taken_ = written;
  if (waiting()) return write();
  if (settled_) settled_();
}

}  // namespace gpulet::agent
