#include "cli/top_session.h"

#include "base/wall_time.h"

namespace gpulet::cli {
namespace {

}  // namespace

TopSession::TopSession(Loop& loop, TopTarget target, TopView view, Hooks hooks)
    : loop_(loop),
      view_(std::move(view)),
      hooks_(std::move(hooks)),
      client_(loop, std::move(target),
              {.connected =
                   [this] {
                     const bool first = !std::exchange(connected_once_, true);
                     view_.away_since.reset();
                     has_history_ = false;
                     if (view_.page == TopPage::kHistory) want_history();
                     hooks_.link(first);
                   },
               .event = [this](const web::Event& event) { return take(event); },
               .away =
                   [this](const Error& error) {
                     if (!view_.away_since) view_.away_since = unix_milliseconds(loop_.wall_now());
                     view_.away_why = error.text();
                     hooks_.link(!connected_once_);
                   }}) {}

Status TopSession::take(const web::Event& event) {
  if (view_.paused) {
    waiting_[event.name] = event.data;
    return {};
  }
  GPULET_TRY(apply(event.name, event.data));
  hooks_.changed(event.name);
  return {};
}

Status TopSession::apply(const std::string& name, const std::string& document) {
  if (name == "node") return model_.take_node(document);
  if (name == "now") return model_.take_now(document);
  if (name == "use") return model_.take_use(document);
  return {};  // of a newer agent
}

void TopSession::set_paused(bool paused) {
  view_.paused = paused;
  if (paused) return;
  // In this order: numbers belong to GPUs.
  for (const char* name : {"node", "now", "use"}) {
    // What is wrong with it is said by the next one, which ends the connection.
    if (const auto document = waiting_.find(name); document != waiting_.end())
      static_cast<void>(apply(name, document->second));
  }
  waiting_.clear();
}

void TopSession::want_history() {
  if (std::exchange(has_history_, true)) return;
  client_.fetch_history([this](const Result<std::string>& text) {
    // Without it the lines begin with what comes.
    if (text && model_.take_history(*text)) hooks_.changed("history");
  });
}

}  // namespace gpulet::cli
