// Programs that netsum is a part of, each in a way in which others have failed:
//   embedded static ADDRESS TOKEN      a communicator with static storage, which ends after main() has returned
//   embedded fork ADDRESS TOKEN        a child of fork() connects and sums, while the parent's communicator goes on
//   embedded exit ADDRESS TOKEN        exit() while a communicator is there, from another thread too
//   embedded throw ADDRESS TOKEN       an exception that nobody catches inside, while work is under way
//   embedded unload ADDRESS TOKEN PART a library that sums by a netsum of its own (embedded_part.cc) is loaded and unloaded
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "netsum/communicator.h"

namespace {

std::optional<netsum::Communicator> global;

netsum::Communicator connect(const std::string& address, const std::string& token, const std::string& job) {
  netsum::Options options;
  options.aggregators = {address};
  options.token = token;
  options.job = job;
  options.world_size = 1;
  options.connect_deadline = std::chrono::seconds(10);
  return netsum::Communicator::connect(options);
}

void sum(netsum::Communicator& comm) {
  std::vector<float> values(10'000, 1);
  comm.all_reduce(std::span<float>(values), netsum::ReduceOp::sum);
  if (std::accumulate(values.begin(), values.end(), 0.0F) != 10'000) throw std::runtime_error("a wrong sum");
}

int run(const std::string& how, const std::string& address, const std::string& token) {
  const std::string job = how + std::to_string(getpid());
  global.emplace(connect(address, token, job));
  sum(*global);
  if (how == "static") return 0;
  if (how == "exit") {
    std::thread([] { std::exit(0); }).join();
  }
  if (how == "throw") {
    std::vector<float> values(100'000, 1);
    try {
      const auto work = global->all_reduce_async({values.data(), values.size()}, netsum::ReduceOp::sum);
      throw std::runtime_error("in the middle of it");
    } catch (const std::runtime_error&) {
      global.reset();
      return 0;
    }
  }
  for (int children = 0; children < 3; ++children) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        auto own = connect(address, token, job + "." + std::to_string(children));
        sum(own);
        _exit(0);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        _exit(1);
      }
    }
    sum(*global);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) throw std::runtime_error("a child failed");
  }
  sum(*global);
  return 0;
}

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

bool is_mapped(const std::string& file) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(file)) return true;
  }
  return false;
}

// Nothing of it may stay: a thread would run code that is gone, and descriptors would grow.
int unload(const char* address, const char* token, const char* part) {
  const auto threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
  for (int time = 0; time < 3; ++time) {
    void* const library = ::dlopen(part, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    auto* const sum_there = reinterpret_cast<int (*)(const char*, const char*)>(::dlsym(library, "embedded_sum"));
    if (const int code = sum_there(address, token); code != 0)
      throw std::runtime_error("the part returned " + std::to_string(code));
    if (::dlclose(library) != 0 || is_mapped(part)) throw std::runtime_error("the part is still there");
    if (entries("/proc/self/task") != threads) throw std::runtime_error("a thread is left");
    if (entries("/proc/self/fd") != descriptors) throw std::runtime_error("a descriptor is left");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    if (std::string(argv[1]) == "unload") return unload(argv[2], argv[3], argc > 4 ? argv[4] : "");
    return run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
