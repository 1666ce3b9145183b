#include "metrics_api/asker.h"

#include <algorithm>

namespace gpulet::metrics_api {

Asker::Asker(Loop& loop, const cluster::Access& access, AskerLimits limits) : loop_(loop), limits_(limits) {
  for (std::size_t i = 0; i < limits_.at_once; ++i) {
    lines_.push_back({std::make_unique<cluster::ApiClient>(loop, access, limits_.answer), false});
  }
}

void Asker::ask(cluster::ApiRequest request, Done done) {
  if (questions_.size() >= limits_.waiting) {
    refused_.push_back([done = std::move(done)] {
      done(fail(Code::kUnavailable, "too many questions wait for the API server"));
    });
  } else {
    questions_.push_back({std::move(request), std::move(done)});
  }
  if (!pumping_) pumping_ = loop_.after(Duration::zero(), [this] { pump(); });
}

// From a turn of its own: who is answered may ask again, or end this.
void Asker::pump() {
  pumping_.reset();
  closing_.reset();
  for (auto& line : lines_) {
    if (line.busy) continue;
    if (questions_.empty()) break;
    Question question = std::move(questions_.front());
    questions_.pop_front();
    line.busy = true;
    line.client->request(question.request, [this, &line, done = std::move(question.done)](
                                               Result<cluster::ApiResponse> response) {
      on_answer(line, done, std::move(response));
    });
  }
  if (std::ranges::none_of(lines_, &Line::busy)) {
    closing_ = loop_.after(limits_.keep_open, [this] {
      for (auto& line : lines_) line.client->close();
    });
  }
  if (refused_.empty()) return;
  const auto refused = std::move(refused_.front());
  refused_.pop_front();
  if (!refused_.empty()) pumping_ = loop_.after(Duration::zero(), [this] { pump(); });
  refused();
}

void Asker::on_answer(Line& line, const Done& done, Result<cluster::ApiResponse> response) {
  line.busy = false;
  if (!pumping_) pumping_ = loop_.after(Duration::zero(), [this] { pump(); });
  done(std::move(response));
}

}  // namespace gpulet::metrics_api
