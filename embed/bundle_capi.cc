// The C ABI of bundles (embed/bundle.h does what they ask for).
#include <cstddef>
#include <cstring>
#include <string>

#include "canarynet/canarynet.h"
#include "embed/bundle.h"
#include "embed/context_handles.h"
#include "embed/in_turn.h"
#include "embed/last_error.h"

using namespace canarynet;

void canary_bundle::clear() { bundle.reset(); }

namespace {

// An older program's options have no codec.
Status read_options(const canary_bundle_options* options, canary_bundle_options* out) {
  constexpr std::size_t kWithoutCodec = offsetof(canary_bundle_options, codec);
  canary_bundle_options& o = *out;
  if (options != nullptr) {
    if (options->struct_size != sizeof o && options->struct_size != kWithoutCodec)
      return wrong_size(options->struct_size, sizeof o, "CANARY_BUNDLE_OPTIONS_INIT");
    std::memcpy(&o, options, options->struct_size);
  }
  if (o.codec == 0 && (o.tensor != 0 || o.momentum != 0)) {
    return bad((o.tensor != 0 ? "tensor is " + std::to_string(o.tensor) : "momentum is " + std::to_string(o.momentum)) +
               " without a codec");
  }
  if (o.priority == CANARY_PRIORITY_NORMAL || o.priority == CANARY_PRIORITY_URGENT) return {};
  return bad("priority " + std::to_string(o.priority) + " is not a canary_priority");
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_bundle_create(canary_group* handle, const canary_tensor* tensors, size_t count,
                                              canary_type type, canary_redop redop,
                                              const canary_bundle_options* options, canary_bundle** bundle) {
  constexpr const char* kName = "bundle_create";
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(kName, handle);
    if (bundle == nullptr) return report(bad("bundle is NULL").wrap(kName));
    if (count < 1 || count > CANARY_BUNDLE_TENSORS_MAX) {
      return report(
          bad(std::to_string(count) + " tensors (1 to " + std::to_string(CANARY_BUNDLE_TENSORS_MAX) + ")").wrap(kName));
    }
    if (tensors == nullptr) return report(bad("tensors are NULL").wrap(kName));
    canary_bundle_options o = CANARY_BUNDLE_OPTIONS_INIT;
    if (Status s = read_options(options, &o); !s.ok()) return report(s.wrap(kName));
    canary_context& context = group.context();
    Kept<canary_bundle> made(HandlePool<canary_bundle>::take());
    made->context = &context;
    {
      const std::lock_guard lock(context.mutex);
      context.bundles.reserve(context.bundles.size() + 1);
    }
    auto b = Bundle::create({&context, group->member, group->shape}, {tensors, count}, type, redop, o);
    if (!b.ok()) return report(b.status().wrap(kName));
    made->bundle = b.take();
    const std::lock_guard lock(context.mutex);
    context.bundles.push_back(std::move(made));
    *bundle = HandlePool<canary_bundle>::open(*context.bundles.back());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_bundle_submit(canary_bundle* bundle, size_t tensor) {
  return in_turn("bundle_submit", bundle, [&](canary_bundle& b) { return b.bundle->submit(tensor); });
}

CANARY_API canary_status canary_bundle_wait(canary_bundle* bundle) {
  return in_turn("bundle_wait", bundle, [](canary_bundle& b) { return b.bundle->wait(); });
}

CANARY_API canary_status canary_bundle_wait_tensor(canary_bundle* bundle, size_t tensor) {
  return in_turn("bundle_wait_tensor", bundle, [&](canary_bundle& b) { return b.bundle->wait_tensor(tensor); });
}

CANARY_API canary_status canary_bundle_read(canary_bundle* bundle, canary_bundle_state* state, size_t* ends,
                                            size_t capacity) {
  return in_turn("bundle_read", bundle, [&](canary_bundle& b) -> Status {
    if (state == nullptr) return bad("state is NULL");
    if (ends == nullptr && capacity != 0) return bad("ends are NULL");
    if (state->struct_size != sizeof *state)
      return wrong_size(state->struct_size, sizeof *state, "sizeof(canary_bundle_state)");
    b.bundle->read(state, {ends, capacity});
    return {};
  });
}

CANARY_API canary_status canary_bundle_destroy(canary_bundle* handle) {
  constexpr const char* kName = "bundle_destroy";
  return guarded([&]() -> canary_status {
    const Inside<canary_bundle> bundle(handle);
    if (!bundle || !HandlePool<canary_bundle>::close(*bundle, handle))
      return HandlePool<canary_bundle>::refuse(kName, handle);
    canary_context& context = bundle.context();
    // Threads that came before the handle was closed end their call first.
    wait_until_alone(bundle->inside);
    bundle->bundle->drain();
    const std::lock_guard lock(context.mutex);
    std::erase_if(context.bundles, [&](const auto& b) { return b.get() == &*bundle; });
    return CANARY_OK;
  });
}

}  // extern "C"
