#include "cluster/sending.h"

#include "base/log.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

constexpr std::size_t kMaxTold = 16;  // of a server that says something else each time

}  // namespace

Sending::Sending(Loop& loop, Access access, SendTiming timing, std::string what, std::function<void()> step)
    : loop_(loop),
      what_(std::move(what)),
      step_(std::move(step)),
      client_(loop, std::move(access), timing.request_limit),
      backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {}

void Sending::wake() {
  if (busy_ || next_) return;
  next_ = loop_.after(Duration::zero(), [this] {
    next_.reset();
    step_();
  });
}

void Sending::request(const ApiRequest& request, std::string right,
                      std::function<Outcome(const ApiResponse&)> answered) {
  busy_ = true;
  right_ = std::move(right);
  answered_ = std::move(answered);
  client_.request(request, [this](const Result<ApiResponse>& response) { on_answer(response); });
}

void Sending::on_answer(const Result<ApiResponse>& response) {
  busy_ = false;
  const Outcome outcome = response ? answered_(*response) : Outcome::kTrouble;
  if (outcome == Outcome::kDone) {
    ++delivery_.taken;
    backoff_.reset();
  }
  if (outcome == Outcome::kTrouble || outcome == Outcome::kRefused) tell(response);
  if (outcome != Outcome::kTrouble && outcome != Outcome::kAgain) return wake();
  client_.close();
  next_ = loop_.after(backoff_.next(), [this] {
    next_.reset();
    step_();
  });
}

void Sending::idle(bool settled) {
  client_.close();
  if (!settled) return;
  backoff_.reset();
  delivery_.trouble.clear();
  told_.clear();
}

void Sending::tell(const Result<ApiResponse>& response) {
  const bool forbidden = response && response->status == 403;
  delivery_.trouble = response ? said(*response) : response.error().text();
  if (forbidden) delivery_.trouble += " (the agent needs " + right_ + ")";
  // A right that is missing is missing for all, whatever the words.
  const std::string& kind = forbidden ? right_ : delivery_.trouble;
  if (told_.size() >= kMaxTold || !told_.insert(kind).second) return;
  ++delivery_.told;
  log::warning("the API server does not take what it is told; trying again",
               {{"what", what_}, {"trouble", delivery_.trouble}});
}

}  // namespace gpulet::cluster
