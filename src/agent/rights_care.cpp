#include "agent/rights_care.h"

#include <algorithm>

#include "base/log.h"

namespace gpulet::agent {
namespace {

bool has(const std::vector<cluster::Right>& rights, const cluster::Right& right) {
  return std::ranges::find(rights, right) != rights.end();
}

}  // namespace

RightsCare::RightsCare(Loop& loop, cluster::Access access, bool in_pod, Duration again,
                       cluster::SendTiming timing)
    : loop_(loop),
      access_(std::move(access)),
      in_pod_(in_pod),
      again_(again),
      review_(cluster::RightsReview::start(
          loop, access_, [this](const auto& refused) { on_answer(refused); }, timing)) {}

void RightsCare::apply(const config::Config& config) {
  auto wanted = wanted_rights(config, access_, in_pod_);
  if (wanted == wanted_) return;
  wanted_ = std::move(wanted);
  ask();
}

std::optional<std::size_t> RightsCare::missing() const {
  return refused_ ? std::optional(refused_->size()) : std::nullopt;
}

void RightsCare::ask() {
  next_.reset();
  std::vector<cluster::Right> rights;
  rights.reserve(wanted_.size());
  for (const auto& wanted : wanted_) rights.push_back(wanted.right);
  review_->ask(std::move(rights));
}

void RightsCare::on_answer(const std::vector<cluster::Right>& refused) {
  const auto before = refused_.value_or(std::vector<cluster::Right>());
  refused_ = refused;
  for (const auto& [right, without] : wanted_) {
    const bool was = has(before, right), is = has(refused, right);
    if (is && !was) log::warning("a right is missing", {{"right", right.text()}, {"without", without}});
    if (was && !is) log::info("a right that was missing is there", {{"right", right.text()}});
  }
  if (!refused.empty()) next_ = loop_.after(again_, [this] { ask(); });
}

}  // namespace gpulet::agent
