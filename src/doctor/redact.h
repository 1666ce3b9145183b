// What must not leave a node, taken out of a text that does: tokens, passwords, keys, by the name that they
// stand behind or by their own form. Pure: any thread.
//
// Rather too much than too little: a name that sounds like a secret's loses its value, whatever that is.
#pragma once

#include <string>
#include <string_view>

namespace gpulet::doctor {

inline constexpr std::string_view kLeftOut = "[left out]";

// The text with kLeftOut in place of
//  - the value of a key like token, password, secret, apiKey, auth, credentials (JSON, YAML, TOML,
//  NAME=value, --name
//    value), of a variable {name: DB_PASSWORD, value: …}, and a block of YAML below such a key;
//  - PEM private keys, `Bearer …`, JSON web tokens, well-known tokens' forms, the user of a URL, and what has
//  40 or more
//    letters of both cases and digits in a row.
std::string without_secrets(std::string_view text);

// Whether a value behind this name is left out.
bool names_a_secret(std::string_view name);

}  // namespace gpulet::doctor
