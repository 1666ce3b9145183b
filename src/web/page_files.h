// The files of the pages, which are src/web/page/ compiled into this program and load nothing from elsewhere:
// the node page of the agent, and the cluster page of `gpulet scheduler`.
#pragma once

#include <optional>
#include <string_view>

#include "http/message.h"

namespace gpulet::web::page {

std::string_view chinese();  // JSON: the texts in Chinese, by the English ones
std::string_view icon();     // SVG

std::string_view html();  // of the node page
std::string_view css();
std::string_view js();
std::string_view runbook();  // Markdown: the runbook of docs/health.md
std::string_view xids();     // Markdown: docs/xids.md

std::string_view cluster_html();
std::string_view cluster_css();
std::string_view cluster_js();
std::string_view cluster_chinese();  // JSON: further texts

}  // namespace gpulet::web::page

namespace gpulet::web {

// The document with status 200, compressed if the client takes that.
http::Response document_body_response(const http::Document& document, std::string_view content_type,
                                      const http::Request& request);

// The file at a path of the node page: "/", "/page.js" and others; nullopt: none. Made at the first call and
// compressed once per process. One thread.
std::optional<http::Response> node_page_file(std::string_view path, const http::Request& request);
// The same of the cluster page.
std::optional<http::Response> cluster_page_file(std::string_view path, const http::Request& request);

}  // namespace gpulet::web
