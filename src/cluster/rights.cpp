#include "cluster/rights.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;

class OneByOne final : public RightsReview {
 public:
  OneByOne(Loop& loop, Access access, std::function<void(std::vector<Right>)> done, SendTiming timing)
      : done_(std::move(done)),
        sending_(loop, std::move(access), timing, "the question which rights are there", [this] { step(); }) {
  }

  void ask(std::vector<Right> rights) override {
    rights_ = std::move(rights);
    refused_.clear();
    next_ = 0;
    ++round_;
    asking_ = true;
    sending_.wake();
  }

 private:
  void step() {
    if (!asking_) return sending_.idle();
    if (next_ == rights_.size()) {
      asking_ = false;
      sending_.idle();
      return done_(std::exchange(refused_, {}));
    }
    sending_.request({.method = "POST",
                      .path = kReviewPath,
                      .content_type = "application/json",
                      .body = review_of(rights_[next_])},
                     "create on selfsubjectaccessreviews.authorization.k8s.io",
                     [this, round = round_](const ApiResponse& response) { return take(response, round); });
  }

  Outcome take(const ApiResponse& response, unsigned round) {
    if (round != round_) return Outcome::kNext;
    if (response.status != 200 && response.status != 201) return Outcome::kTrouble;
    const auto review = json::parse(response.body, nullptr, false);
    const auto& allowed = member(member(review, "status"), "allowed");
    if (!allowed.is_boolean()) return Outcome::kTrouble;
    if (!allowed.get<bool>()) refused_.push_back(rights_[next_]);
    ++next_;
    return Outcome::kNext;
  }

  std::function<void(std::vector<Right>)> done_;
  std::vector<Right> rights_, refused_;
  std::size_t next_ = 0;
  unsigned round_ = 0;
  bool asking_ = false;
  Sending sending_;
};

}  // namespace

std::string Right::text() const {
  return verb + " on " + resource + (group.empty() ? "" : "." + group) +
         (name_space.empty() ? "" : " in " + name_space);
}

std::string review_of(const Right& right) {
  const auto slash = right.resource.find('/');
  json attributes = {{"verb", right.verb}, {"resource", right.resource.substr(0, slash)}};
  if (slash != std::string::npos) attributes["subresource"] = right.resource.substr(slash + 1);
  if (!right.group.empty()) attributes["group"] = right.group;
  if (!right.name_space.empty()) attributes["namespace"] = right.name_space;
  if (!right.name.empty()) attributes["name"] = right.name;
  return body_of({{"apiVersion", "authorization.k8s.io/v1"},
                  {"kind", "SelfSubjectAccessReview"},
                  {"spec", {{"resourceAttributes", attributes}}}});
}

std::unique_ptr<RightsReview> RightsReview::start(Loop& loop, Access access,
                                                  std::function<void(std::vector<Right>)> done,
                                                  SendTiming timing) {
  return std::make_unique<OneByOne>(loop, std::move(access), std::move(done), timing);
}

}  // namespace gpulet::cluster
