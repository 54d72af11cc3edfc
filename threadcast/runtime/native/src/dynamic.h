// Takes ready operators by priority as they become ready, in place of replaying a plan's order (Graphi, section 4).
#pragma once

#include <deque>
#include <queue>

#include "step.h"

namespace threadcast {

// What is known of every operator, and who runs them. Each group of lanes runs one operator at a time.
struct Order {
  std::vector<Seat> seats;                // by lane; the calling thread takes the first
  std::vector<std::vector<int>> groups;   // lanes of each, the leader first
  std::vector<double> levels;             // of each operator: the longest path from it to the end
  std::vector<bool> tiny;                 // run at once by whoever made them ready
};

class DynamicEngine : public Stepper {
 public:
  DynamicEngine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, Order order,
                std::chrono::nanoseconds spin);

 private:
  using Ready = std::pair<double, int>;  // level, operator: of equal ones the earlier comes first

  void prepare() override;
  void play(size_t lane) override;
  void lead(size_t lane);
  void finish(int op, std::vector<int>& mine);
  int take();
  void offer(int op);

  const Order order_;
  std::vector<std::pair<size_t, int>> place_;  // of each lane: its group, and its rank there
  std::deque<Shares> shares_;                  // by group
  std::vector<std::unique_ptr<Crew>> crews_;   // by group; none for one thread
  std::atomic<int> left_{0}, offered_{0};
  std::mutex offering_;
  std::priority_queue<Ready> ready_;
};

}  // namespace threadcast
