#include "agent/health_memory.h"

#include "base/log.h"
#include "health/state_file.h"

namespace gpulet::agent {
namespace {

constexpr std::uint64_t kSaveSeed = 61;

}  // namespace

HealthFile::HealthFile(Loop& loop, std::string path)
    : loop_(loop), path_(std::move(path)), relay_(std::make_shared<Relay>(loop)) {}

HealthFile::~HealthFile() { relay_->close(); }

void HealthFile::move_to(std::string path) { path_ = std::move(path); }

Result<health::Saved> HealthFile::read() {
  if (last_) return *last_;
  if (path_.empty()) return health::Saved{};
  return health::read_state(path_);
}

void HealthFile::write(const health::Saved& saved, std::function<void(Status)> done) {
  last_ = saved;
  const auto answer = [alive = std::weak_ptr(alive_), done = std::move(done)](Status status) {
    if (!alive.expired()) done(std::move(status));
  };
  if (path_.empty()) return loop_.post([answer] { answer({}); });
  const auto started = start_detached("the health state", [relay = relay_, path = path_, saved, answer] {
    relay->post([answer, status = health::write_state(path, saved)] { answer(status); });
  });
  if (!started) loop_.post([answer, started] { answer(started); });
}

Status HealthFile::write_now(const health::Saved& saved) {
  last_ = saved;
  return path_.empty() ? Status() : health::write_state(path_, saved);
}

std::string HealthFile::boot_id() { return health::read_boot_id().value_or(""); }

HealthKeeper::HealthKeeper(Loop& loop, HealthMemory* memory, health::Machine& machine)
    : loop_(loop), memory_(memory), machine_(machine), backoff_(kSaveBackoff, kSaveSeed) {}

HealthKeeper::~HealthKeeper() {
  if (memory_ == nullptr || machine_.revision() == kept_) return;
  if (const auto status = memory_->write_now(saved()); !status && !failing_) {
    log::warning("faults are not remembered", status.error());
  }
}

void HealthKeeper::restore() {
  if (memory_ == nullptr) return;
  boot_id_ = memory_->boot_id();
  const auto saved = memory_->read();
  if (!saved) {
    // What is still wrong is seen again.
    log::warning("what was remembered of faults cannot be read and is left out", saved.error());
  } else {
    machine_.restore(*saved, boot_id_, {loop_.now(), loop_.wall_now()});
  }
  kept_ = machine_.revision();
}

void HealthKeeper::look() {
  if (memory_ == nullptr || timer_ || writing_ || machine_.revision() == kept_) return;
  timer_ = loop_.after(kSaveDelay, [this] { write(); });
}

void HealthKeeper::write() {
  timer_.reset();
  writing_ = true;
  const auto revision = machine_.revision();
  memory_->write(saved(), [this, revision, alive = std::weak_ptr(alive_)](const Status& status) {
    if (alive.expired()) return;
    writing_ = false;
    if (status) {
      kept_ = revision;
      backoff_.reset();
      if (std::exchange(failing_, false)) log::info("faults are remembered again");
      return look();
    }
    if (!std::exchange(failing_, true)) {
      log::warning("faults are not remembered: the state file cannot be written, and is tried again",
                   status.error());
    }
    timer_ = loop_.after(backoff_.next(), [this] { write(); });
  });
}

health::Saved HealthKeeper::saved() const { return machine_.save({loop_.now(), loop_.wall_now()}, boot_id_); }

}  // namespace gpulet::agent
