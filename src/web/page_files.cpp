#include "web/page_files.h"

#include <map>
#include <string>

namespace gpulet::web {
namespace {

constexpr std::string_view kHtmlType = "text/html; charset=utf-8";
constexpr std::string_view kCssType = "text/css; charset=utf-8";
constexpr std::string_view kScriptType = "text/javascript; charset=utf-8";
constexpr std::string_view kJsonType = "application/json";
constexpr std::string_view kSvgType = "image/svg+xml";
constexpr std::string_view kMarkdownType = "text/markdown; charset=utf-8";

struct PageFile {
  PageFile(std::string_view type, std::string_view text) : content_type(type), document(std::string(text)) {}
  std::string_view content_type;
  http::Document document;
};
using PageFiles = std::map<std::string_view, PageFile>;

PageFiles shared_files() {
  PageFiles files;
  files.try_emplace("/chinese.json", kJsonType, page::chinese());
  files.try_emplace("/icon.svg", kSvgType, page::icon());
  return files;
}

PageFiles node_files() {
  auto files = shared_files();
  files.try_emplace("/", kHtmlType, page::html());
  files.try_emplace("/page.css", kCssType, page::css());
  files.try_emplace("/page.js", kScriptType, page::js());
  files.try_emplace("/runbook.md", kMarkdownType, page::runbook());
  files.try_emplace("/xids.md", kMarkdownType, page::xids());
  return files;
}

PageFiles cluster_files() {
  auto files = shared_files();
  files.try_emplace("/", kHtmlType, page::cluster_html());
  files.try_emplace("/cluster.css", kCssType, page::cluster_css());
  files.try_emplace("/cluster.js", kScriptType, page::cluster_js());
  files.try_emplace("/cluster-chinese.json", kJsonType, page::cluster_chinese());
  return files;
}

std::optional<http::Response> find_file(const PageFiles& files, std::string_view path,
                                        const http::Request& request) {
  const auto found = files.find(path);
  if (found == files.end()) return std::nullopt;
  return document_body_response(found->second.document, found->second.content_type, request);
}

}  // namespace

http::Response document_body_response(const http::Document& document, std::string_view content_type,
                                      const http::Request& request) {
  http::Response answer{
      .content_type = content_type, .body = document.plain_text(), .varies_by_accept = true};
  if (http::accepts_gzip(request.accept_encoding) && document.gzipped()) {
    answer.body = document.gzipped();
    answer.gzipped = true;
  }
  return answer;
}

std::optional<http::Response> node_page_file(std::string_view path, const http::Request& request) {
  static const PageFiles files = node_files();
  return find_file(files, path, request);
}

std::optional<http::Response> cluster_page_file(std::string_view path, const http::Request& request) {
  static const PageFiles files = cluster_files();
  return find_file(files, path, request);
}

}  // namespace gpulet::web
