// A text that is served, shared by the connections that read it slowly, and its compressed form, made once
// when somebody first wants it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace gpulet::web {

using SharedText = std::shared_ptr<const std::string>;

// RFC 1952, by zlib; empty where there is no memory for it.
std::string gzip(std::string_view text);
// The inverse; empty for what is no whole gzip, or is larger than `limit` unpacked.
std::string gunzip(std::string_view packed, std::size_t limit);

// One thread.
class Document {
 public:
  Document() : Document(std::string()) {}
  explicit Document(std::string text) : plain_(std::make_shared<const std::string>(std::move(text))) {}

  const SharedText& plain() const { return plain_; }
  // Null where it would not be smaller.
  const SharedText& gzipped() const;

 private:
  SharedText plain_;
  mutable SharedText gzipped_;
  mutable bool tried_ = false;
};

}  // namespace gpulet::web
