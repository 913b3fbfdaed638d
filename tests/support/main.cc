// The main() of every GoogleTest program: the protocols' assertions are on.
#include <gtest/gtest.h>

#include "base/check.h"

int main(int count, char** arguments) {
  netsum::checking = true;
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
