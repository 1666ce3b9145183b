// The folders of one root, each listed at most once however many names it has (/lib64 and /usr/lib64), and
// not asked for where a listing at hand says that it is not there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cdi/root.h"

namespace gpulet::cdi {

class Folders {
 public:
  explicit Folders(const Root& root) : root_(&root) {}

  // nullptr when it is not there or cannot be listed; else good as long as this object.
  const Folder* get(std::string_view path);
  // What could not be listed though it is there, one line each.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  bool known_missing(std::string_view path) const;
  const Folder* open(const std::string& path);

  const Root* root_;
  std::map<std::string, std::unique_ptr<Folder>, std::less<>> by_path_;  // by resolved path
  std::map<std::string, const Folder*, std::less<>> by_name_;            // by the path that was asked for
  std::vector<std::string> problems_;
};

}  // namespace gpulet::cdi
