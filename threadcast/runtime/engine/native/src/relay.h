// Runs steps by the current engine, which may be exchanged at any time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "engine.h"

namespace threadcast {

// An engine that is exchanged while it runs a step hands it over at the next operator boundary.
class Relay {
 public:
  explicit Relay(std::shared_ptr<Engine> first) : current_(std::move(first)) {}

  void change(std::shared_ptr<Engine> next);  // from any thread, to an engine of the same program
  // Runs one step; calls `begun` once it has taken the inputs, before any operator runs. For one thread at a time, any,
  // which must not hold Python's lock.
  Values run(Values inputs, const std::vector<size_t>& wanted, std::vector<Ran>* ran,
             const std::function<void()>& begun = {});

 private:
  std::shared_ptr<Engine> current();

  std::mutex changing_;
  std::shared_ptr<Engine> current_;
};

}  // namespace threadcast
