// Policies that ask: what callers say to the coordinator, and what they hear from it. The exchanges themselves are
// partial all-reduces, of which nothing here knows.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/duration_text.h"
#include "engine/engine.h"
#include "engine/policy_post.h"
#include "engine/policy_words.h"

namespace canarynet {
namespace {

constexpr std::size_t kPostsMax = 256;  // of all ranks served here
// What a successor's desk is told of them takes up room there until all of their workers have said the same.
constexpr std::size_t kClosedPostsKept = 64;

std::string name_of_policy(std::uint64_t number) { return "policy #" + std::to_string(number); }

}  // namespace

bool Engine::look_around(port::MemberId id, std::vector<std::uint64_t>* hosts, std::vector<bool>* gone) const {
  const GroupMember* const m = member(id);
  if (m == nullptr) return false;
  const Group& g = *m->group;
  hosts->clear();
  gone->clear();
  std::vector<int> seen;
  for (std::size_t r = 0; r < g.members.size(); ++r) {
    const auto host = std::find(seen.begin(), seen.end(), g.host_of[r]);
    hosts->push_back(static_cast<std::uint64_t>(host - seen.begin()));
    if (host == seen.end()) seen.push_back(g.host_of[r]);
    gone->push_back(peers_[g.engine_of[r]].gone || g.left[r] != 0);
  }
  return true;
}

PolicyPost* Engine::find_post(port::MemberId caller, std::uint64_t number) const {
  for (const auto& post : posts_) {
    if (post->policy.number == number && post->caller == caller) return post.get();
  }
  return nullptr;
}

bool Engine::has_post(const GroupMember& m) const {
  return std::any_of(posts_.begin(), posts_.end(), [&](const auto& post) { return post->caller == m.id; });
}

void Engine::obey_policy(GroupMember* caller, const port::Command& c) {
  OpTicket* const ticket = tickets_->at(c.ticket.place);
  CANARY_CHECK(ticket != nullptr, "a ticket ended before its policy's call");
  const auto answer = [&](const Status& status) {
    ticket->finish(status.ok() ? status : status.wrap(name_of_policy(c.count)));
  };
  if (caller == nullptr) return answer(Status(CANARY_INVALID_ARGUMENT, "its group has been destroyed"));
  const auto step = static_cast<port::PolicyStep>(c.rank);
  if (step == port::PolicyStep::kOpen) return answer(open_policy(*caller, c));
  PolicyPost* const post = find_post(caller->id, c.count);
  if (post == nullptr) return answer(Status(CANARY_INVALID_ARGUMENT, "it has been closed"));
  if (step == port::PolicyStep::kClose) {
    close_policy(*post);
    return answer({});
  }
  if (step == port::PolicyStep::kLeave) {
    leave_policy(*post);
    return answer({});
  }
  if (step == port::PolicyStep::kAsk) {
    if (!post->over.ok()) return answer(post->over);
    if (post->left) return answer(Status(CANARY_INVALID_ARGUMENT, "this worker has left it"));
    PolicyWord word;
    word.kind = PolicyWord::Kind::kAsk;
    word.question = read_question(std::span<const std::uint64_t, port::kQuestionWords>(
        reinterpret_cast<const std::uint64_t*>(regions_.at(c.numbers)), port::kQuestionWords));
    post->note(word.question, now_);
    say(*post, std::move(word));
    return answer({});
  }
  if (post->waiting != nullptr) return answer(Status(CANARY_INVALID_ARGUMENT, "another call waits for its answer"));
  if (c.type == 0 && post->inbox.empty() && post->over.ok()) {
    const port::PolicyAnswer none;
    std::memcpy(regions_.at(c.output), &none, sizeof none);
    return answer({});
  }
  post->waiting = ticket;
  post->to = c.output;
  post->since = now_;
  settle_post(*post);
}

Status Engine::open_policy(const GroupMember& caller, const port::Command& c) {
  const Group& g = *caller.group;
  if (g.dead && g.verdict.code() == CANARY_ABORTED) return g.verdict;
  if (find_post(caller.id, c.count) != nullptr) return Status(CANARY_INVALID_ARGUMENT, "this rank has opened it");
  if (posts_.size() >= kPostsMax)
    return Status(CANARY_LIMIT, "this process has " + std::to_string(kPostsMax) + " policies that ask");
  if (!policies_over_.ok()) return policies_over_;
  if (peers_[membership_->coordinator()].gone)
    return Status(CANARY_COORDINATOR_LOST, name_of_coordinator() + ", which answers its questions, is gone");
  posts_.push_back(std::make_unique<PolicyPost>());
  PolicyPost& post = *posts_.back();
  post.caller = caller.id;
  post.policy = {g.flow, g.epoch, c.count};
  post.rank = static_cast<std::uint32_t>(caller.world_rank);
  PolicyWord word;
  word.kind = PolicyWord::Kind::kOpen;
  word.name = std::string(reinterpret_cast<const char*>(regions_.at(c.input)), c.input.bytes);
  word.members = g.members;
  const auto* hosts = reinterpret_cast<const std::uint64_t*>(regions_.at(c.numbers));
  for (std::size_t i = 0; i < c.numbers.bytes / sizeof *hosts; ++i)
    word.hosts.push_back(static_cast<std::uint32_t>(hosts[i]));
  post.opening = word;
  say(post, std::move(word));
  return {};
}

// Another engine coordinates from now on, and has not heard of any policy. It has to know of those who have left one,
// too: it would wait for them.
void Engine::on_coordinator(std::uint32_t) {
  for (auto* posts : {&posts_, &closed_posts_}) {
    for (const auto& post : *posts) {
      resume(*post);
    }
  }
}

void Engine::resume(PolicyPost& post) {
  PolicyWord word = post.opening;
  word.kind = PolicyWord::Kind::kResume;
  word.ago = word.asked ? now_ - post.asked_at : Nanos{};
  word.leaves = post.left || !post.over.ok();
  say(post, std::move(word));
}

void Engine::on_coordinator_lost(const Status& why) { end_policies(why); }

// For good: nobody coordinates any more, or the others go on without the ranks served here.
void Engine::end_policies(const Status& why) {
  if (policies_over_.ok()) policies_over_ = why;
  end_posts(why);
}

std::string Engine::name_of_coordinator() const { return ranks_text(membership_->coordinator()); }

// What a coordinator that succeeds this one would have to know of it.
void PolicyPost::note(const sync::Question& question, Nanos now) {
  using Kind = sync::Question::Kind;
  sync::Recollection::Told& told = opening.told;
  if (question.kind == Kind::kPulled && question.number > told.number) told.done = true;
  if (question.kind == Kind::kDone) {  // no question, and one may be open beside it
    told.done |= question.number == told.number;
    return;
  }
  opening.question = question;
  opening.asked = opening.open = true;
  asked_at = now;
}

void PolicyPost::note(const PolicyReply& reply) {
  using Kind = sync::Answer::Kind;
  if (reply.kind != Kind::kGroup || reply.requested) opening.open = false;
  if (reply.kind != Kind::kAggregate && reply.kind != Kind::kGroup) return;
  opening.has_told = true;
  opening.told = {reply.kind, reply.number, reply.members, false, reply.source, reply.behind};
}

void Engine::say(PolicyPost& post, PolicyWord word) {
  word.policy = post.policy;
  word.rank = post.rank;
  word.serial = ++post.said;
  word.seen = post.seen;
  membership_->say(now_, std::move(word));
}

void Engine::on_policy_reply(const PolicyReply& reply) {
  for (const auto& one : posts_) {
    PolicyPost& post = *one;
    if (post.policy != reply.policy || post.rank != reply.rank) continue;
    if (reply.serial <= post.seen || !post.over.ok()) return;  // it came before
    post.seen = reply.serial;
    if (reply.failed != CANARY_OK || post.inbox.size() >= PolicyPost::kInboxMax) {
      post.over = reply.failed != CANARY_OK ? Status(reply.failed, reply.text)
                                            : Status(CANARY_LIMIT, "its worker takes no answers");
    } else {
      if (!reply.last) post.note(reply);
      if (!std::exchange(post.finished, post.finished || reply.last)) post.inbox.push_back(reply);
    }
    return settle_post(post);
  }
}

void Engine::settle_post(PolicyPost& post) {
  if (post.waiting == nullptr) return;
  if (!post.inbox.empty()) {
    write_answer(post.inbox.front(), {reinterpret_cast<std::byte*>(regions_.at(post.to)), post.to.bytes});
    post.inbox.pop_front();
    return std::exchange(post.waiting, nullptr)->finish(Status());
  }
  if (!post.over.ok())
    std::exchange(post.waiting, nullptr)->finish(Status(post.over).wrap(name_of_policy(post.policy.number)));
}

void Engine::leave_policy(PolicyPost& post) {
  if (std::exchange(post.left, true)) return;
  PolicyWord word;
  word.kind = PolicyWord::Kind::kLeave;
  say(post, std::move(word));
}

void Engine::close_policy(PolicyPost& post) {
  leave_policy(post);
  if (post.waiting != nullptr)
    post.waiting->finish(Status(CANARY_INVALID_ARGUMENT, name_of_policy(post.policy.number) + " has been closed"));
  post.waiting = nullptr;
  const auto place = std::find_if(posts_.begin(), posts_.end(), [&](const auto& one) { return one.get() == &post; });
  post.inbox = {};
  closed_posts_.push_back(std::move(*place));
  posts_.erase(place);
  if (closed_posts_.size() > kClosedPostsKept) closed_posts_.erase(closed_posts_.begin());
}

// Nobody answers any more: none of them, or those of a group's members.
void Engine::end_posts(const Status& why, const Group* of) {
  for (const auto& post : posts_) {
    const GroupMember* const m = of != nullptr ? member(post->caller) : nullptr;
    if (of != nullptr && (m == nullptr || m->group != of)) continue;
    if (post->over.ok()) post->over = why;
    settle_post(*post);
  }
}

// The workers of a rank that leaves while others of its process stay.
void Engine::retire_posts(int world_rank) {
  for (std::size_t i = posts_.size(); i-- > 0;) {
    if (posts_[i]->rank == static_cast<std::uint32_t>(world_rank)) close_policy(*posts_[i]);
  }
}

void Engine::check_posts(Nanos now) {
  for (const auto& post : posts_) {
    if (post->waiting == nullptr || now - post->since <= options_.settings.entry_limit) continue;
    std::exchange(post->waiting, nullptr)
        ->finish(Status(CANARY_ENTRY_TIMEOUT, name_of_policy(post->policy.number) + ": no answer came for " +
                                                  milliseconds(now - post->since) +
                                                  ": the other workers that it takes have not asked"));
  }
}

}  // namespace canarynet
