// Links are buried where memory may have run out.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "control/control_link.h"
#include "tests/allocation_counter.h"

namespace canarynet::control {
namespace {

class Owner final : public LinkOwner {
 public:
  void on_link_up(ControlLink&) override {}
  void on_link_hello(ControlLink&, const wire::HelloPayload&) override {}
  void on_link_message(ControlLink&, Message&) override {}
  void on_link_down(ControlLink&, const Status&, bool) override {}
  void on_link_broken(ControlLink&, const Status&) override {}
};

TEST(LinkGraveyard, TakesLinksWithoutAnyMemory) {
  Owner owner;
  const Nanos now;
  std::vector<std::unique_ptr<ControlLink>> links;
  for (int i = 0; i < 100; ++i) links.push_back(std::make_unique<ControlLink>(owner, now));
  LinkGraveyard graveyard;
  allocation_counter::arm();
  for (auto& link : links) graveyard.add(std::move(link));
  EXPECT_EQ(allocation_counter::disarm(), 0);
  EXPECT_FALSE(graveyard.empty());
  graveyard.clear();
  EXPECT_TRUE(graveyard.empty());
}

}  // namespace
}  // namespace canarynet::control
