// A command line, an environment and a configuration file: all that may come out is a usage error, or settings whose printed
// form, given as the file, means the same.
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "apps/netsum/config.h"
#include "apps/netsum/tenants.h"
#include "fuzz/harness.h"
#include "sim/scenario.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

// A file without a place, so that runs at the same time do not meet.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& text) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    fuzz::check(descriptor_ >= 0 && write(descriptor_, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
                "a file");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// Settings of each type and check that the subcommands use.
struct Command {
  Command() {
    settings.add("listen", listen, "HOST:PORT", "text");
    settings.add("threads", threads, "N", "checked").between(1, 256);
    settings.add("seed", seed, "S", "64 bits");
    settings.add("loss", loss, "P", "a fraction").between(0.0, 1.0);
    settings.add("slots", slots, "N", "positive").positive();
    settings.add_flag("pin", pin, "yes or no");
    sections["switch"] = {"listen"};
  }

  [[nodiscard]] auto values() const { return std::tuple(listen, threads, seed, loss, slots, pin); }

  CLI::App root{"", "netsum"};
  CLI::App& app = *root.add_subcommand("bench")->add_subcommand("all-reduce");
  app::Sections sections;
  app::Settings settings{app, "bench.all-reduce", sections};
  std::string listen = "127.0.0.1:0";
  std::uint32_t threads = 1, slots = 16;
  std::uint64_t seed = 1;
  double loss = 0;
  bool pin = false;
};

// Whether the command line was taken; false: CLI11's own usage error, or --help.
bool parse(Command& command, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  arguments.insert(arguments.end(), {"all-reduce", "bench"});
  try {
    command.root.parse(arguments);
  } catch (const CLI::Error&) {
    return false;
  }
  return command.app.parsed();
}

void check_printed(const Command& command) {
  // TOML is UTF-8: a text that is not cannot be a file's.
  if (std::any_of(command.listen.begin(), command.listen.end(), [](unsigned char c) { return c >= 0x80; })) return;
  const std::string printed = command.settings.print();
  const MemoryFile file(printed);
  Command again;
  fuzz::check(parse(again, {"--config", file.path()}), "a file is taken");
  try {
    again.settings.resolve();
  } catch (const app::UsageError& error) {
    std::fprintf(stderr, "%s\n%s", error.what(), printed.c_str());
    fuzz::check(false, "what is printed can be read");
  }
  const bool same = again.values() == command.values();
  if (!same) std::fprintf(stderr, "%s-- read again:\n%s", printed.c_str(), again.settings.print().c_str());
  fuzz::check(same, "what is printed means the same");
}

void configure(FuzzedDataProvider& input) {
  std::vector<std::string> arguments;
  for (int count = input.ConsumeIntegralInRange<int>(0, 3); count > 0; --count) {
    const char* const name =
        input.PickValueInArray({"--listen", "--threads", "--seed", "--loss", "--slots", "--pin", "--print-config", ""});
    if (*name != '\0') arguments.emplace_back(name);
    if (input.ConsumeBool()) arguments.push_back(input.ConsumeRandomLengthString(24));
  }
  const char* const variable = input.PickValueInArray(
      {"NETSUM_LISTEN", "NETSUM_THREADS", "NETSUM_SEED", "NETSUM_LOSS", "NETSUM_SLOTS", "NETSUM_PIN"});
  const bool set = input.ConsumeBool();
  if (set) setenv(variable, input.ConsumeRandomLengthString(24).c_str(), 1);
  const MemoryFile file(input.ConsumeRemainingBytesAsString());
  arguments.insert(arguments.end(), {"--config", file.path()});
  Command command;
  const bool parsed = parse(command, arguments);
  bool resolved = false;
  try {
    if (parsed) command.settings.resolve();
    resolved = parsed;
  } catch (const app::UsageError&) {
  }
  unsetenv(variable);
  if (!resolved) return;
  fuzz::check(command.threads >= 1 && command.threads <= 256 && command.loss >= 0 && command.loss <= 1 && command.slots > 0,
              "a value is within its range, wherever it comes from");
  check_printed(command);
}

// What `simulate --limit` takes is printed as the same limits.
void limit(FuzzedDataProvider& input) {
  try {
    const sim::Limits limits = sim::Limits::parse(input.ConsumeRemainingBytesAsString());
    const std::string text = limits.text();
    fuzz::check(sim::Limits::parse(text).text() == text, "limits are read as they are written");
  } catch (const std::invalid_argument&) {
  }
}

// A tenants file makes tenants with names, tokens and limits, or one line of what is wrong.
void tenants(FuzzedDataProvider& input) {
  try {
    for (const Tenant& tenant : app::parse_tenants(input.ConsumeRemainingBytesAsString(), "tenants")) {
      fuzz::check(tenant.memory_bytes != 0 && tenant.jobs != 0 && tenant.joins != 0, "a limit of nothing is none");
    }
  } catch (const app::UsageError& error) {
    fuzz::check(std::string_view(error.what()).starts_with("tenants"), "an error names its file");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  FuzzedDataProvider input(data + 1, size - 1);
  if (data[0] % 8 == 0) {
    limit(input);
  } else if (data[0] % 8 == 1) {
    tenants(input);
  } else {
    configure(input);
  }
  return 0;
}
