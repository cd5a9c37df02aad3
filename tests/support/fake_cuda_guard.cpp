// A device guard and hooks that do nothing, by which fake tensors of a build of torch for the host play those of CUDA:
// indexing takes a guard before it dispatches, and autograd asks for a device's stream and records events on it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr auto CUDA = c10::DeviceType::CUDA;

struct Guard : c10::impl::NoOpDeviceGuardImpl<CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return {CUDA, 0}; }
  c10::Device getDevice() const override { return {CUDA, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(CUDA, 0));
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream({CUDA, 0}); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

Guard guard;

struct CUDAHooks : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  // nobody draws from it
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace

extern "C" void register_fake_cuda() {
  auto& slot = c10::impl::device_guard_impl_registry[static_cast<size_t>(CUDA)];
  if (!slot.load()) slot.store(&guard);
}
