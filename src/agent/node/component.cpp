#include "agent/node/component.h"

namespace gpulet::agent {

ComponentList::~ComponentList() { destroy_all(); }

void ComponentList::start_all() {
  for (const auto& component : components_) component->start();
}

void ComponentList::stop_all(std::function<void()> done) { stop_next(components_.size(), std::move(done)); }

void ComponentList::stop_next(std::size_t left, std::function<void()> done) {
  if (left == 0) return done();
  components_[left - 1]->stop([this, left, done = std::move(done)] { stop_next(left - 1, done); });
}

void ComponentList::destroy_all() {
  while (!components_.empty()) components_.pop_back();
}

}  // namespace gpulet::agent
