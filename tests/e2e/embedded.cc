// Programs that netsum is a part of, each in a way in which others have failed:
//   embedded static ADDRESS TOKEN      a communicator with static storage, which ends after main() has returned
//   embedded fork ADDRESS TOKEN        a child of fork() connects and sums, while the parent's communicator goes on
//   embedded exit ADDRESS TOKEN        exit() while a communicator is there, from another thread too
//   embedded throw ADDRESS TOKEN       an exception that nobody catches inside, while work is under way
//   embedded many ADDRESS TOKEN        two processes with nine communicators, all with sums under way, begun in opposite
//   orders; embedded many-shared ADDRESS TOKEN  over UDP, and in shared memory embedded unload ADDRESS TOKEN PART a library
//   that sums by a netsum of its own (embedded_part.cc) is loaded and unloaded
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
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

void sum(netsum::Communicator& comm, int ranks = 1) {
  std::vector<float> values(10'000, 1);
  comm.all_reduce(std::span<float>(values), netsum::ReduceOp::sum);
  if (values != std::vector<float>(10'000, static_cast<float>(ranks))) throw std::runtime_error("a wrong sum");
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

// One process of two. The sums end though each begins with what the other one does last, and the first communicator's
// threads serve all.
int many(const char* address, const char* token, netsum::SharedMemory shared) {
  constexpr int copies = 9;
  constexpr std::ptrdiff_t most_threads = 3, most_descriptors = 2;  // for the first beside main(); for each more
  constexpr std::ptrdiff_t of_callers = 1;                          // by which one that sleeps in a call is woken
  const pid_t parent = getpid(), child = fork();
  const std::uint32_t rank = child == 0 ? 1 : 0;
  const auto before = entries("/proc/self/task");
  std::vector<netsum::Communicator> all;
  std::ptrdiff_t threads = 0, descriptors = 0;
  for (int copy = 0; copy < copies; ++copy) {
    netsum::Options options;
    options.aggregators = {address};
    options.token = token;
    options.job = "many" + std::to_string(parent) + "." + std::to_string(copy);
    options.rank = rank;
    options.world_size = 2;
    netsum::SwitchMl switchml;
    switchml.shared_memory = shared;
    options.protocol = switchml;
    all.push_back(netsum::Communicator::connect(options));
    sum(all.back(), 2);
    if (copy != 0) continue;
    threads = entries("/proc/self/task");
    descriptors = entries("/proc/self/fd");
  }
  std::vector<std::vector<float>> values(copies, std::vector<float>(300'000, 1));
  std::vector<netsum::Work> works;
  for (int i = 0; i < copies; ++i) {
    const auto turn = static_cast<std::size_t>(rank == 0 ? i : copies - 1 - i);
    for (int again = 0; again < 3; ++again) {
      works.push_back(all[turn].all_reduce_async({values[turn].data(), values[turn].size()}, netsum::ReduceOp::sum));
    }
  }
  for (auto& work : works) work.wait();
  for (const auto& each : values) {
    if (each != std::vector<float>(300'000, 8)) throw std::runtime_error("a wrong sum");
  }
  if (threads - before > most_threads) throw std::runtime_error(std::to_string(threads - before) + " threads for the first");
  if (entries("/proc/self/task") != threads) throw std::runtime_error("more communicators have more threads");
  const auto more = entries("/proc/self/fd") - descriptors;
  if (more > most_descriptors * (copies - 1) + of_callers)
    throw std::runtime_error(std::to_string(more) + " descriptors for 8 more");
  all.clear();
  if (entries("/proc/self/task") != before) throw std::runtime_error("a thread is left");
  int status = 0;
  if (child != 0 && (waitpid(child, &status, 0) != child || status != 0))
    throw std::runtime_error("the other process failed");
  return 0;
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
    if (std::string(argv[1]) == "many") return many(argv[2], argv[3], netsum::SharedMemory::off);
    if (std::string(argv[1]) == "many-shared") return many(argv[2], argv[3], netsum::SharedMemory::required);
    return run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
