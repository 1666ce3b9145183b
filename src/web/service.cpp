#include "web/service.h"

#include <array>

#include "base/text.h"

namespace gpulet::web {
namespace {

// What a browser must not do with our pages. They load nothing from elsewhere, run no script but their own
// file, are shown in no frame and want nothing of the device.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kHeaders = {{
    {"Cache-Control", "no-store"},
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri "
     "'none'; "
     "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Permissions-Policy",
     "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), "
     "magnetometer=(), microphone=(), payment=(), usb=()"},
    {"Referrer-Policy", "no-referrer"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"X-Robots-Tag", "noindex"},
}};

std::string_view phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    default:
      return "Service Unavailable";
  }
}

}  // namespace

std::string head_of(const Answer& answer, bool keep_alive, const Headers& headers) {
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " ";
  head.append(phrase(answer.status)).append("\r\nContent-Type: ").append(answer.content_type);
  if (!answer.events) head.append("\r\nContent-Length: ").append(std::to_string(answer.body->size()));
  if (answer.gzipped) head.append("\r\nContent-Encoding: gzip");
  if (answer.varies) head.append("\r\nVary: Accept, Accept-Encoding");
  for (const auto& [name, value] : kHeaders) {
    bool replaced = false;
    for (const auto& [other, theirs] : headers) replaced |= text::lower(other) == text::lower(name);
    if (!replaced) head.append("\r\n").append(name).append(": ").append(value);
  }
  for (const auto& [name, value] : headers) head.append("\r\n").append(name).append(": ").append(value);
  if (answer.asks_password) head.append("\r\nWWW-Authenticate: Basic realm=\"gpulet\", charset=\"UTF-8\"");
  if (answer.status == 405) head.append("\r\nAllow: GET, HEAD");
  if (answer.status == 429 || answer.status == 503) head.append("\r\nRetry-After: 5");
  head.append(keep_alive ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n");
  return head;
}

}  // namespace gpulet::web
