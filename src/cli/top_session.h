// What both forms of `gpulet top` have in common: a client, the model that it fills, and whether the agent is
// away. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/loop.h"
#include "cli/top_client.h"
#include "cli/top_model.h"
#include "cli/top_view.h"

namespace gpulet::cli {

class TopSession {
 public:
  struct Hooks {
    std::function<void(const std::string& name)> changed;  // by a document of that name
    // The agent is away, or is there again: view().away_since says which. The first time it was never there.
    std::function<void(bool first)> link;
  };
  TopSession(Loop& loop, TopTarget target, TopView view, Hooks hooks);

  const TopModel& model() const { return model_; }
  TopView& view() { return view_; }
  // While it is paused, documents wait; the newest count once it is not.
  void set_paused(bool paused);
  // Asks for the time before now, once a connection.
  void want_history();

 private:
  Status take(const web::Event& event);
  Status apply(const std::string& name, const std::string& document);

  Loop& loop_;
  TopModel model_;
  TopView view_;
  Hooks hooks_;
  TopClient client_;
  std::map<std::string, std::string> waiting_;
  bool connected_once_ = false, has_history_ = false;
};

}  // namespace gpulet::cli
