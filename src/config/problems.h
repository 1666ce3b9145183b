// What was wrong with a configuration, gathered while it is read, so that one run shows it all.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "config/yaml.h"

namespace gpulet::config {

class Problems {
 public:
  Problems(std::string file, bool drop_in) : file_(std::move(file)), drop_in_(drop_in) {}

  // In drop-in mode the file is read as leniently as NVIDIA's plugin reads it.
  bool drop_in() const { return drop_in_; }
  const std::string& file() const { return file_; }
  bool full() const { return errors_.size() >= kMost; }

  // "file:3:5: field: message".
  void error(yaml::Position position, const std::string& field, const std::string& message) {
    error(yaml::place(file_, position), field.empty() ? message : field + ": " + message);
  }
  void error(const std::string& about, const std::string& message) {
    if (!full()) errors_.emplace_back(Code::kInvalidArgument, message, about);
  }
  void warning(yaml::Position position, const std::string& field, const std::string& message) {
    warning(yaml::place(file_, position) + ": " + (field.empty() ? message : field + ": " + message));
  }
  void warning(std::string message) {
    if (warnings_.size() < kMost) warnings_.push_back(std::move(message));
  }
  // What NVIDIA's plugin does not mind is a warning in drop-in mode, else an error.
  void lenient(yaml::Position position, const std::string& field, const std::string& message) {
    drop_in_ ? warning(position, field, message) : error(position, field, message);
  }

  std::vector<Error> take_errors() { return std::move(errors_); }
  std::vector<std::string> take_warnings() { return std::move(warnings_); }

 private:
  static constexpr std::size_t kMost = 100;  // of either
  std::string file_;
  bool drop_in_;
  std::vector<Error> errors_;
  std::vector<std::string> warnings_;
};

}  // namespace gpulet::config
