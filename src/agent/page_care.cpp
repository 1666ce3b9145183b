#include "agent/page_care.h"

#include <utility>

namespace gpulet::agent {

PageCare::PageCare(std::string node_name, std::string version) {
  input_.node_name = std::move(node_name);
  input_.version = std::move(version);
  input_.moments = &moments_;
  input_.events = &events_;
}

template <class Value>
void PageCare::take(Value& mine, Value now) {
  if (mine == now) return;
  mine = std::move(now);
  changed_ = true;
}

void PageCare::on_snapshot(inventory::SnapshotPtr snapshot) { take(input_.snapshot, std::move(snapshot)); }
void PageCare::on_problems(std::vector<std::string> problems) { take(input_.problems, std::move(problems)); }
void PageCare::on_offered(kubelet::DevicesByResource offered) { take(input_.offered, std::move(offered)); }
void PageCare::on_containers(std::vector<kubelet::ContainerDevices> containers) {
  take(input_.containers, std::move(containers));
}
void PageCare::on_config(std::string text) { take(input_.config, std::move(text)); }

void PageCare::on_health(health::ViewPtr view, const std::vector<health::Change>& changes) {
  for (const auto& change : changes) {
    if (change.before.state != change.after.state) moments_.add(moment_of(change, *view));
  }
  take(input_.health, std::move(view));
}

void PageCare::on_event(bool warning, std::string reason, std::string message, WallTime at) {
  events_.add({at, warning, std::move(reason), std::move(message)});
  changed_ = true;
}

void PageCare::on_sample(const metrics::Meter& meter, WallTime at) {
  now_ = now_document(meter.sample(), at);
  use_ = use_document(meter.sample(), meter.uses().devices, meter.processes(), at);
}

void PageCare::put_into(web::Pages& pages) {
  if (std::exchange(changed_, false)) {
    node_ = node_document(input_);
    node_.shrink_to_fit();  // it is kept, and was written into doubling room
  }
  pages.node = node_;
  pages.now = now_;
  pages.use = use_;
}

}  // namespace gpulet::agent
