// Parts of netsum that need libraries which most hosts lack: in libraries of their own, loaded when they are first wanted.
#pragma once

#include <string>

namespace netsum::transport {

struct Plugin {
  const char* file;
  const char* variable;  // of the environment, which may name the file
  const char* name;
  const char* wanted;  // requires it: "the data path dpdk"
  const char* remedy;
};

// Looked for beside what this code is in, where a build puts it, and where it is installed. It stays until the process ends.
// Throws Error: refused.
[[nodiscard]] void* plugin_function(const Plugin& plugin, const char* symbol);

// The first line of what a library says: errors are one line.
[[nodiscard]] std::string first_line(const std::string& text);

}  // namespace netsum::transport
