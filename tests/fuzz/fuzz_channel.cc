// Bytes at both ends of a control connection, before and after a caller has proved a token: nothing is kept beyond one
// frame that may come, and whatever comes is either taken or ends the connection in one line.
#include <optional>
#include <string>
#include <utility>

#include "control/border.h"
#include "control/broken.h"
#include "control/ends.h"
#include "fuzz/harness.h"
#include "fuzzer/FuzzedDataProvider.h"
#include "session/check.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr char token[] = "a secret of sixteen characters or more";
constexpr std::size_t most_held = (16 << 20) + (64 << 10);

struct Ends {
  explicit Ends(bool with_token) : tenants(with_token ? control::Tenants::one(token) : control::Tenants()) {
    manners.wants = [this] { return std::pair(!tenants.empty(), false); };
    manners.judge = [this](const control::Proofs& proofs, const std::string& transcript, const std::string&) {
      control::Verdict verdict;
      verdict.why = "no";
      const Tenant* const tenant = tenants.prove(proofs.token, transcript, "Connect", "");
      if (tenant != nullptr || tenants.empty()) verdict.principal.emplace();
      if (tenant != nullptr) verdict.token = tenant->token;
      return verdict;
    };
    caller.emplace(control::Credentials{with_token ? token : "", ""}, nullptr);
    daemon.emplace(manners, nullptr, "peer");
    caller->request(control::Kind::hello, control::write(control::HelloRequest{"train"}));
  }
  control::Tenants tenants;
  control::DaemonEnd::Manners manners;
  std::optional<control::CallerEnd> caller;
  std::optional<control::DaemonEnd> daemon;
};

// What an end says, on its way: as it is, changed, cut short, repeated, or with others' bytes in it.
template <class End>
std::string on_its_way(End& end, FuzzedDataProvider& input) {
  std::string bytes(end.outgoing());
  end.sent(bytes.size());
  switch (input.ConsumeIntegralInRange<int>(0, 7)) {
    case 0:
      if (!bytes.empty())
        bytes[input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] = input.ConsumeIntegral<char>();
      break;
    case 1:
      bytes.resize(input.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
      break;
    case 2:
      bytes.insert(input.ConsumeIntegralInRange<std::size_t>(0, bytes.size()), input.ConsumeRandomLengthString(32));
      break;
    case 3:
      bytes += bytes;
      break;
    default:
      break;
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  Ends ends(input.ConsumeBool());
  try {
    while (input.remaining_bytes() > 0) {
      ends.daemon->received(on_its_way(*ends.caller, input));
      fuzz::check(ends.daemon->principal() || ends.daemon->held_bytes() < 16384, "strangers' bytes are few");
      if (const auto frame = ends.daemon->take_request()) {
        fuzz::check(ends.daemon->principal().has_value(), "a request comes behind a proof");
        static_cast<void>(control::parse<control::HelloRequest>(frame->payload));
        ends.daemon->answer({std::nullopt, control::write(control::Hello{})});
      }
      ends.caller->received(on_its_way(*ends.daemon, input));
      fuzz::check(ends.daemon->held_bytes() < most_held, "no end keeps more than a frame");
      if (ends.caller->take_answer() && ends.caller->welcome()) {
        ends.caller->request(control::Kind::hello, control::write(control::HelloRequest{"again"}));
      }
    }
  } catch (const control::Broken& broken) {
    fuzz::check(session::printable(broken.what()) && broken.what()[0] != '\0', "an end in one line");
  }
  return 0;
}
