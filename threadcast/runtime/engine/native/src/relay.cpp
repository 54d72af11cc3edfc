#include "relay.h"

namespace threadcast {

void Relay::change(std::shared_ptr<Engine> next) {
  std::lock_guard<std::mutex> lock(changing_);
  if (next == current_) return;
  next->allow();
  current_.swap(next);
  next->halt();
}

Values Relay::run(Values inputs, const std::vector<size_t>& wanted, std::vector<Ran>* ran,
                  const std::function<void()>& begun) {
  std::shared_ptr<Engine> engine = current();
  engine->begin(std::move(inputs));
  if (begun) begun();
  while (!engine->go(ran)) {
    std::shared_ptr<Engine> next = current();
    next->take_over(*engine);
    engine = std::move(next);
  }
  return engine->end(wanted);
}

std::shared_ptr<Engine> Relay::current() {
  std::lock_guard<std::mutex> lock(changing_);
  return current_;
}

}  // namespace threadcast
