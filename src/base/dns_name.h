// The one check of names of Kubernetes objects, before they become part of a path, a query or a file name.
// Source: Kubernetes, "Object Names and IDs"; k8s.io/apimachinery/pkg/util/validation, IsDNS1123Subdomain
// and IsQualifiedName.
#pragma once

#include <string>
#include <string_view>

namespace gpulet {

// A label: at most 63 lower case letters, digits and '-', with a letter or digit at both ends. Namespaces and
// Services have such names.
bool is_dns_label(std::string_view text);

// A subdomain: labels joined by '.', at most 253 characters, each label of any length. Pods, nodes and most
// other objects have such names. Neither "." nor "..", nor anything with a '/' or a '%', is one.
bool is_dns_subdomain(std::string_view text);

// The key of a label, an annotation or a taint: "gpulet.io/not-ready". A name of at most 63 letters, digits,
// '-', '_' and '.', with a letter or digit at both ends; before it, if there is one, a subdomain and a '/'.
bool is_qualified_name(std::string_view text);

// A text with the characters of a label's value only: '-' for spaces, nothing for others, a letter or digit at
// both ends. Of any length: "NVIDIA A100-SXM4-40GB" → "NVIDIA-A100-SXM4-40GB".
std::string label_characters(std::string_view raw);

}  // namespace gpulet
