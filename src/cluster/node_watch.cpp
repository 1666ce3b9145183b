#include "cluster/node_watch.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;

class OneNodeWatch final : public NodeWatch {
 public:
  OneNodeWatch(Loop& loop, const Access& access, WatchTiming timing,
               std::function<void(const Labels&)> changed)
      : changed_(std::move(changed)),
        watch_(ObjectWatch::start(
            loop, access,
            {.collection = "/api/v1/nodes",
             .name = access.node_name,
             .about = "this node's labels",
             .right = "nodes"},
            timing, [this](const json& node) { learn(texts_of(member(node, "metadata"), "labels")); })) {}

 private:
  void learn(Labels labels) {
    if (known_ && *known_ == labels) return;
    known_ = std::move(labels);
    changed_(*known_);
  }

  std::function<void(const Labels&)> changed_;
  std::optional<Labels> known_;
  std::unique_ptr<ObjectWatch> watch_;
};

}  // namespace

std::unique_ptr<NodeWatch> NodeWatch::start(Loop& loop, const Access& access, WatchTiming timing,
                                            std::function<void(const Labels&)> changed) {
  return std::make_unique<OneNodeWatch>(loop, access, timing, std::move(changed));
}

}  // namespace gpulet::cluster
