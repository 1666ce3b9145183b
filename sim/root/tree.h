// Files made below a root, with a list of all that was made, so that it can be undone now or by another
// process later. Nothing that was there before is touched.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::sim {

class Tree {
 public:
  explicit Tree(std::string root) : root_(std::move(root)) {}

  // The tree whose list is in `list_path`. Errors: kNotFound, kInvalidArgument for a list that leads out of
  // the root.
  static Result<Tree> open(std::string root, std::string_view list_path);
  // Writes the list, itself in it.
  Status save(std::string_view list_path);

  // Paths are relative to the root; missing parents are made. kFailedPrecondition for what exists already.
  Status directory(std::string_view path);
  Status file(std::string_view path, std::string_view content, mode_t mode = 0644);
  Status copy(std::string_view path, const std::string& source, mode_t mode = 0755);
  Status link(std::string_view path, std::string_view target);
  // A character device. kPermissionDenied where the kernel refuses.
  Status node(std::string_view path, unsigned major, unsigned minor, mode_t mode = 0666);

  // Removes one path of the list.
  void remove(std::string_view path);
  // Removes all that was made; folders that others put something into stay.
  void undo();

  const std::string& root() const { return root_; }
  const std::vector<std::string>& made() const { return made_; }

 private:
  std::string full(std::string_view path) const { return root_ + "/" + std::string(path); }
  Status parents_of(std::string_view path);

  std::string root_;
  std::vector<std::string> made_;  // in the order of making
};

}  // namespace gpulet::sim
