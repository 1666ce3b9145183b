#include "tests/storm/liveness_probe.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/sim/node_fixture.h"

namespace gpulet::storm {
namespace {

constexpr int kIntervalMs = 50;

}  // namespace

LivenessProbe::LivenessProbe(std::string socket)
    : socket_(std::move(socket)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { probe_until_stopped(); }) {}

LivenessProbe::~LivenessProbe() {
  stopped_ = true;
  ::eventfd_write(wake_, 1);
  thread_.join();
  ::close(wake_);
}

void LivenessProbe::on_agent_started() {
  const std::lock_guard lock(mutex_);
  running_ = true;
  live_ = false;
  answered_ = Clock::now();
  ++starts_;
}

void LivenessProbe::on_agent_ended() {
  const std::lock_guard lock(mutex_);
  running_ = live_ = false;
  ++starts_;
}

std::string LivenessProbe::violation() const {
  const std::lock_guard lock(mutex_);
  return violation_;
}

bool LivenessProbe::is_live() const {
  const std::lock_guard lock(mutex_);
  return running_ && live_;
}

void LivenessProbe::probe_until_stopped() {
  while (!stopped_) {
    probe_once();
    if (loaded_) {
      for (const char* page : {"/metrics", "/api/node", "/api/history"}) tests::http_get(socket_, page);
    }
    pollfd ended{wake_, POLLIN, 0};
    ::poll(&ended, 1, kIntervalMs);
  }
}

void LivenessProbe::probe_once() {
  std::uint64_t start = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!running_) return;
    start = starts_;
  }
  const auto reply = tests::http_get(socket_, "/healthz");
  const std::lock_guard lock(mutex_);
  if (start != starts_) return;  // of another process
  live_ = reply.status == 200;
  if (live_) answered_ = Clock::now();
  last_answer_ = reply.status == 0 ? "no answer" : std::to_string(reply.status) + " " + reply.body;
  if (Clock::now() - answered_ <= kLivenessLimit || !violation_.empty()) return;
  violation_ = "/healthz was not 200 for " + std::to_string(kLivenessLimit.count()) + " s: " + last_answer_;
}

}  // namespace gpulet::storm
