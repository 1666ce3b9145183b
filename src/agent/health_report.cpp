#include "agent/health_report.h"

#include "base/file.h"
#include "health/report.h"

namespace gpulet::agent {

HealthReport::HealthReport(Loop& loop, Reporter& reporter, std::string path, std::uint64_t seed)
    : loop_(loop), reporter_(reporter), path_(std::move(path)), backoff_(kReportBackoff, seed) {}

HealthReport::~HealthReport() {
  if (waiting_) write();
}

void HealthReport::on_health(const health::ViewPtr& view) {
  if (path_.empty() || !view) return;
  waiting_ = view;
  if (!next_) next_ = loop_.after(Duration::zero(), [this] { write(); });
}

void HealthReport::write() {
  const auto status = write_file_atomic(path_, health::format_report(*waiting_));
  if (!status) {
    if (!std::exchange(failing_, true)) {
      reporter_.event(Reporter::Severity::kWarning, "HealthReportNotWritten",
                      status.error().text() + "; `gpulet health` shows nothing new until it can be");
    }
    next_ = loop_.after(backoff_.next(), [this] { write(); });
    return;
  }
  if (std::exchange(failing_, false)) {
    reporter_.event(Reporter::Severity::kNormal, "HealthReportWritten", path_ + " is written again");
  }
  backoff_.reset();
  waiting_.reset();
  next_ = loop_.after(kReportPause, [this] {
    next_.reset();
    if (waiting_) write();
  });
}

}  // namespace gpulet::agent
