// The C ABI of ratios (embed/ratio_choice.h does what they ask for).
#include <mutex>
#include <utility>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/context_handles.h"
#include "embed/in_turn.h"
#include "embed/last_error.h"
#include "embed/ratio_choice.h"

using namespace canarynet;

void canary_ratio::clear() { choice.reset(); }

extern "C" {

CANARY_API canary_status canary_ratio_create(canary_group* handle, const canary_ratio_options* options,
                                             canary_ratio** ratio) {
  constexpr const char* kName = "ratio_create";
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(kName, handle);
    if (options == nullptr || ratio == nullptr) return report(bad("an argument is NULL").wrap(kName));
    if (options->struct_size != sizeof *options)
      return report(wrong_size(options->struct_size, sizeof *options, "CANARY_RATIO_OPTIONS_INIT").wrap(kName));
    canary_context& context = group.context();
    Kept<canary_ratio> made(HandlePool<canary_ratio>::take());
    made->context = &context;
    {
      const std::lock_guard lock(context.mutex);
      context.ratios.reserve(context.ratios.size() + 1);
    }
    auto choice = RatioChoice::create({&context, group->member, group->shape}, *options);
    if (!choice.ok()) return report(choice.status().wrap(kName));
    made->choice = choice.take();
    const std::lock_guard lock(context.mutex);
    context.ratios.push_back(std::move(made));
    *ratio = HandlePool<canary_ratio>::open(*context.ratios.back());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_ratio_next(canary_ratio* ratio, uint32_t* codec) {
  return in_turn("ratio_next", ratio, [&](canary_ratio& r) -> Status {
    if (codec == nullptr) return bad("codec is NULL");
    return r.choice->next(codec);
  });
}

CANARY_API canary_status canary_ratio_report(canary_ratio* ratio) {
  return in_turn("ratio_report", ratio, [](canary_ratio& r) { return r.choice->report(); });
}

CANARY_API canary_status canary_ratio_read(canary_ratio* ratio, canary_ratio_state* state) {
  return in_turn("ratio_read", ratio, [&](canary_ratio& r) -> Status {
    if (state == nullptr) return bad("state is NULL");
    if (state->struct_size != sizeof *state)
      return wrong_size(state->struct_size, sizeof *state, "sizeof(canary_ratio_state)");
    r.choice->read(state);
    return {};
  });
}

CANARY_API canary_status canary_ratio_destroy(canary_ratio* handle) {
  constexpr const char* kName = "ratio_destroy";
  return guarded([&]() -> canary_status {
    const Inside<canary_ratio> ratio(handle);
    if (!ratio || !HandlePool<canary_ratio>::close(*ratio, handle))
      return HandlePool<canary_ratio>::refuse(kName, handle);
    canary_context& context = ratio.context();
    // Threads that came before the handle was closed end their call first.
    wait_until_alone(ratio->inside);
    const std::lock_guard lock(context.mutex);
    std::erase_if(context.ratios, [&](const auto& r) { return r.get() == &*ratio; });
    return CANARY_OK;
  });
}

}  // extern "C"
