#include "agent/cordon_care.h"

namespace gpulet::agent {

CordonCare::CordonCare(Loop& loop, Reporter& reporter, std::string path,
                       std::function<void(const health::Evidence&)> take)
    : loop_(loop), reporter_(reporter), path_(std::move(path)), take_(std::move(take)) {
  // Watched before it is read: a change between the two is an event.
  auto watch = FileWatch::start(loop_, path_, [this] { read(); });
  if (watch) {
    watch_ = std::move(*watch);
  } else {
    reporter_.event(Reporter::Severity::kWarning, "CordonsNotFollowed",
                    watch.error().text() + "; a GPU that is cordoned now is withdrawn after a restart");
  }
  read();
}

CordonCare::~CordonCare() = default;

void CordonCare::read() {
  auto cordons = health::read_cordons(path_);
  if (!cordons) return tell_wrong(cordons.error().text());
  wrong_.clear();
  cordons_ = std::move(*cordons);
  said_.clear();
  settle_soon();
}

void CordonCare::tell_wrong(const std::string& wrong) {
  if (wrong == wrong_) return;
  wrong_ = wrong;
  reporter_.event(Reporter::Severity::kWarning, "CordonsUnreadable", wrong + "; cordons stay as they were");
}

void CordonCare::on_health(const health::ViewPtr& view) {
  view_ = view;
  settle_soon();
}

// Never from inside the agent's own call: what is taken changes how devices stand, which is told again.
void CordonCare::settle_soon() {
  if (!soon_) soon_ = loop_.after(Duration::zero(), [this] { settle(); });
}

void CordonCare::settle() {
  soon_.reset();
  if (!view_ || !cordons_) return;
  const auto wishes = health::wishes_of(*view_, *cordons_, {loop_.now(), loop_.wall_now()});
  std::vector<Said> saying;
  for (const auto& wish : wishes)
    saying.emplace_back(wish.scope, std::get<health::OperatorWish>(wish.body).wish);
  // What is not taken (cordons that a policy ignores, say) is not said again and again.
  if (saying == said_) return;
  said_ = std::move(saying);
  for (const auto& wish : wishes) take_(wish);
}

}  // namespace gpulet::agent
