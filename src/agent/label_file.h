// The node's labels as the file that NFD's worker reads: written on a thread of its own, as its disk may
// hang, again with a backoff when that fails, which is said once. Without labels there is no file.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "base/thread.h"

namespace gpulet::agent {

// Loop's thread only.
class LabelFile {
 public:
  // `settled` is called from the loop each time that the newest labels are on disk; may be empty.
  LabelFile(Loop& loop, std::string path, std::function<void()> settled = {},
            BackoffLimits backoff = {std::chrono::milliseconds(500), std::chrono::seconds(30)});
  ~LabelFile();
  LabelFile(const LabelFile&) = delete;

  const std::string& path() const { return path_; }
  // The newest wins. Nothing is touched before the first call; what is there already is not written, nor is
  // it looked at again.
  void set(std::map<std::string, std::string> labels);
  bool waiting() const { return wanted_ != taken_; }
  const std::string& trouble() const { return trouble_; }  // empty while nothing stands in the way

 private:
  using Labels = std::map<std::string, std::string>;
  void write();
  void on_written(const Status& status, const std::optional<Labels>& written);

  Loop& loop_;
  const std::string path_;
  std::function<void()> settled_;
  Backoff backoff_;
  std::optional<Labels> wanted_, taken_;
  bool writing_ = false;
  std::string trouble_;
  std::shared_ptr<Relay> relay_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Subscription retry_;
};

}  // namespace gpulet::agent
