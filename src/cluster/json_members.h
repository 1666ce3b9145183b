// Takes a JSON object apart into its members as the bytes come, without keeping more than one of them: a list
// of thousands of objects costs the memory of its largest. It checks no more than it must to find where each
// ends; whoever takes a member parses it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::cluster {

class JsonMembers {
 public:
  // `member` is given each member of the object that is an object or a text, as it is written (a text with
  // its quotes); `item` each element of the member "items" that is an object. What is above `limit` bytes is
  // an error.
  JsonMembers(std::size_t limit, std::function<void(std::string_view key, std::string_view value)> member,
              std::function<void(std::string_view)> item);

  // The next bytes. Errors: kIo for what is no object, or is too large.
  Status feed(std::string_view bytes);
  // Whether the object has ended.
  bool done() const { return done_; }

 private:
  Status in_text(std::string_view bytes, std::size_t& at);
  Status take(char c);
  Status ends();

  const std::size_t limit_;
  std::function<void(std::string_view, std::string_view)> member_;
  std::function<void(std::string_view)> item_;
  std::size_t depth_ = 0;
  bool in_text_ = false, escaped_ = false, done_ = false;
  bool items_ = false;      // inside the list "items"
  bool capturing_ = false;  // `value_` grows
  bool key_next_ = true;    // the next text of the object is a key
  std::string text_;        // of the object itself: a key, or a member that is a text
  std::string key_, value_;
};

// The text of a member of `object`, where it is a text without escapes; empty where there is none.
std::string text_member(std::string_view object, std::string_view name);
// The same of an object's metadata.
std::string metadata_text(std::string_view object, std::string_view name);

}  // namespace gpulet::cluster
