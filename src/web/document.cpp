#include "web/document.h"

#include <zlib.h>

namespace gpulet::web {
namespace {

constexpr std::size_t kWorthIt = 256;  // below, the answer's head is larger than what is won
// A page of metrics is a third larger than at the best level, and made in a fifth of the time.
constexpr int kLevel = 3;
constexpr int kGzipWindow = 15 + 16;  // zlib's way to say gzip's form

}  // namespace

std::string gzip(std::string_view text) {
  z_stream stream{};
  if (::deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  std::string packed(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const bool whole = ::deflate(&stream, Z_FINISH) == Z_STREAM_END;
  packed.resize(whole ? stream.total_out : 0);
  ::deflateEnd(&stream);
  packed.shrink_to_fit();
  return packed;
}

std::string gunzip(std::string_view packed, std::size_t limit) {
  z_stream stream{};
  if (::inflateInit2(&stream, kGzipWindow) != Z_OK) return {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text;
  int result = Z_OK;
  while (result == Z_OK && text.size() <= limit) {
    char piece[16'384];
    stream.next_out = reinterpret_cast<Bytef*>(piece);
    stream.avail_out = sizeof piece;
    result = ::inflate(&stream, Z_NO_FLUSH);
    text.append(piece, sizeof piece - stream.avail_out);
    if (result == Z_OK && stream.avail_in == 0 && stream.avail_out != 0) result = Z_BUF_ERROR;
  }
  ::inflateEnd(&stream);
  return result == Z_STREAM_END && text.size() <= limit ? text : std::string();
}

const SharedText& Document::gzipped() const {
  if (!tried_) {
    tried_ = true;
    if (plain_->size() >= kWorthIt) {
      std::string packed = gzip(*plain_);
      if (!packed.empty() && packed.size() < plain_->size()) {
        gzipped_ = std::make_shared<const std::string>(std::move(packed));
      }
    }
  }
  return gzipped_;
}

}  // namespace gpulet::web
