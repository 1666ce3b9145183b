#include "agent/operator_care.h"

namespace gpulet::agent {

OperatorCare::OperatorCare(Loop& loop, Reporter& reporter, std::function<void(const health::Evidence&)> take,
                           std::uint64_t seed)
    : loop_(loop),
      reporter_(reporter),
      take_(std::move(take)),
      seed_(seed),
      backoff_(kPresenceBackoff, seed) {}

void OperatorCare::apply(const std::string& state_dir, const std::string& health_file) {
  if (health_file_ != health_file) {
    health_file_ = health_file;
    report_.emplace(loop_, reporter_, health_file, seed_);
    if (view_) report_->on_health(view_);
  }
  if (state_dir_ == state_dir) return;
  state_dir_ = state_dir;
  presence_.reset();
  cordons_.reset();
  again_.reset();
  backoff_.reset();
  told_ = false;
  if (state_dir.empty()) return;
  hold();
  cordons_.emplace(loop_, reporter_, cordons_file(state_dir), take_);
  if (view_) cordons_->on_health(view_);
}

void OperatorCare::hold() {
  auto held = Presence::hold(presence_file(*state_dir_));
  if (held) {
    presence_.emplace(std::move(*held));
    return;
  }
  if (!std::exchange(told_, true)) {
    const bool other = held.error().code() == Code::kFailedPrecondition;
    reporter_.event(Reporter::Severity::kWarning, other ? "AnotherAgent" : "PresenceNotTold",
                    held.error().text() + (other ? ": two agents must not share gpulet.stateDir"
                                                 : "; `gpulet health` takes this agent for away"));
  }
  again_ = loop_.after(backoff_.next(), [this] { hold(); });
}

void OperatorCare::on_health(const health::ViewPtr& view) {
  view_ = view;
  if (report_) report_->on_health(view);
  if (cordons_) cordons_->on_health(view);
}

}  // namespace gpulet::agent
