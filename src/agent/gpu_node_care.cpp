#include "agent/gpu_node_care.h"

#include <algorithm>

namespace gpulet::agent {
namespace {

using scheduler::GpuNode;

GpuNode without_loads(GpuNode node) {
  for (auto& gpu : node.gpus) gpu.load.clear();
  return node;
}

GpuNode without_holders(GpuNode node) {
  node.holders.clear();
  return node;
}

}  // namespace

GpuNodeCare::GpuNodeCare(GpuNodePorts ports, GpuNodeTiming timing)
    : ports_(std::move(ports)), timing_(timing) {
  look_after(Duration::zero());
}

// The earliest wins.
void GpuNodeCare::look_after(Duration delay) {
  const Time due = ports_.loop.now() + delay;
  if (next_ && *due_ <= due) return;
  due_ = due;
  next_ = ports_.loop.after(delay, [this] {
    next_.reset();
    look();
  });
}

void GpuNodeCare::look() {
  if (looking_) {
    again_ = true;
    return;
  }
  looking_ = true;
  ports_.holders(
      [this, alive = std::weak_ptr(alive_)](Result<std::vector<kubelet::ContainerDevices>> holders) {
        if (alive.expired()) return;
        looking_ = false;
        // A kubelet that is away changes nothing of who holds what.
        if (holders) holders_ = std::move(*holders);
        compare();
        look_after(std::exchange(again_, false) ? timing_.settle : timing_.look_every);
      });
}

void GpuNodeCare::compare() {
  later_.reset();
  auto node = ports_.node(holders_);
  if (!node || (written_ && *node == *written_)) return;
  Duration every = timing_.load_every;
  if (!written_ || without_holders(without_loads(*node)) != without_holders(without_loads(*written_))) {
    every = Duration::zero();
  } else if (node->holders != written_->holders) {
    every = timing_.holders_every;
  }
  const Time now = ports_.loop.now();
  if (written_at_ && now < *written_at_ + every) {
    later_ = ports_.loop.after(*written_at_ + every - now, [this] { compare(); });
    return;
  }
  ++writes_;
  written_at_ = now;
  ports_.write(scheduler::encode_spec(*node));
  written_ = std::move(node);
}

}  // namespace gpulet::agent
