// Labels that somebody else keeps for us: as they are wanted, and as they were last taken.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace gpulet::cluster {

class WantedLabels {
 public:
  using Labels = std::map<std::string, std::string>;

  // False: they are wanted already.
  bool set(Labels labels) {
    if (wanted_ == labels) return false;
    wanted_ = std::move(labels);
    return true;
  }
  // They may not be there any more as they were taken.
  void look_again() { look_ = true; }

  bool due() const { return wanted_ && (!up_to_date() || look_); }
  bool up_to_date() const { return taken_ == wanted_; }
  // Precondition: due().
  const Labels& operator*() const { return *wanted_; }
  const Labels* operator->() const { return &*wanted_; }

  // `sent` are there now. True when that is what is wanted, and nothing is due any more.
  bool taken(const Labels& sent) {
    taken_ = sent;
    if (!up_to_date()) return false;
    look_ = false;
    return true;
  }

 private:
  std::optional<Labels> wanted_, taken_;
  bool look_ = false;
};

}  // namespace gpulet::cluster
