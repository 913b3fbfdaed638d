// Libraries that are loaded when they are first called, and plugins: what is said where they are not there.
#include "transport/system/late_library.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "netsum/error.h"
#include "transport/system/plugin.h"

namespace netsum::transport {
namespace {

template <class Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::refused);
    return error.what();
  }
  return "";
}

TEST(LateLibrary, FindsFunctionsAndSaysWhatToInstall) {
  LateLibrary math("libm.so.6", "libc6");
  EXPECT_EQ(reinterpret_cast<double (*)(double)>(math.function("cos"))(0), 1);
  EXPECT_EQ(refusal_of([&] { static_cast<void>(math.function("no_such_function")); }),
            "libm.so.6 does not have no_such_function: install a newer libc6");
  LateLibrary missing("libnosuch.so.9", "libnosuch9");
  const std::string why = refusal_of([&] { static_cast<void>(missing.function("cos")); });
  EXPECT_TRUE(why.starts_with("libnosuch.so.9 cannot be loaded: install libnosuch9 (")) << why;
  EXPECT_EQ(why.find('\n'), std::string::npos);
}

TEST(Plugin, SaysWhereItIsLookedForAndWhatToDo) {
  const Plugin plugin{"libnosuch_plugin.so", "NETSUM_NOSUCH_PLUGIN", "nosuch", "the data plane nosuch", "install it"};
  const std::string why = refusal_of([&] { static_cast<void>(plugin_function(plugin, "open")); });
  EXPECT_TRUE(why.starts_with("the data plane nosuch requires the nosuch plugin, and ")) << why;
  EXPECT_TRUE(why.ends_with("/libnosuch_plugin.so does not exist: install it, or set NETSUM_NOSUCH_PLUGIN")) << why;
}

}  // namespace
}  // namespace netsum::transport
