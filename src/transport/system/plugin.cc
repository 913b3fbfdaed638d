#include "transport/system/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "netsum/error.h"

namespace netsum::transport {
namespace {

std::vector<std::string> places_of(const Plugin& plugin) {
  if (const char* const named = std::getenv(plugin.variable); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> places;
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&plugin_function), &own) != 0 && own.dli_fname != nullptr) {
    const std::string file = own.dli_fname;
    const auto slash = file.rfind('/');
    std::string folder = slash == std::string::npos ? "" : file.substr(0, slash + 1);
    // A program that was found by PATH is only named.
    std::array<char, 4096> program{};
    if (folder.empty() && ::readlink("/proc/self/exe", program.data(), program.size() - 1) > 0) {
      folder = program.data();
      folder.resize(folder.rfind('/') + 1);
    }
    for (const char* const side : {"", "../lib/"}) places.push_back(folder + side + plugin.file);
  }
  places.push_back(std::string(NETSUM_PLUGIN_FOLDER) + "/" + plugin.file);
  return places;
}

}  // namespace

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

void* plugin_function(const Plugin& plugin, const char* symbol) {
  const std::string name = plugin.name;
  const std::vector<std::string> places = places_of(plugin);
  const auto place =
      std::find_if(places.begin(), places.end(), [](const auto& each) { return ::access(each.c_str(), R_OK) == 0; });
  if (place == places.end()) {
    throw Error(ErrorCode::refused, std::string(plugin.wanted) + " requires the " + name + " plugin, and " + places.back() +
                                        " does not exist: " + plugin.remedy + ", or set " + plugin.variable);
  }
  // What it uses may have threads, which run until the process ends.
  void* const loaded = ::dlopen(place->c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (loaded == nullptr) {
    throw Error(ErrorCode::refused, "cannot load the " + name + " plugin: " + first_line(::dlerror()));
  }
  void* const found = ::dlsym(loaded, symbol);
  if (found == nullptr) {
    throw Error(ErrorCode::refused, "the " + name + " plugin " + *place + " lacks " + symbol + ": " + plugin.remedy);
  }
  return found;
}

}  // namespace netsum::transport
