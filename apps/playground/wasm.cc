// What index.html calls. Texts are valid until the next call.
#include <memory>
#include <string>

#include "apps/playground/playground.h"

namespace {

std::unique_ptr<netsum::playground::Playground> run;
std::string text;

}  // namespace

extern "C" {

void playground_start(int published, unsigned seed) {
  using netsum::playground::Rule;
  run = std::make_unique<netsum::playground::Playground>(published != 0 ? Rule::published : Rule::netsum, seed);
}

int playground_act(const char* actions) {
  return run->act(actions) ? 1 : 0;
}

const char* playground_walk(unsigned step) {
  return (text = run->walk(step)).c_str();
}

const char* playground_state() {
  return (text = run->state()).c_str();
}
}
