// square on CUDA: one elementwise kernel for forward and backward, bounded by memory bandwidth.
#include "common/launch.cuh"
#include "common/vec.cuh"
#include "square/square.h"
#include "square/square_math.h"

namespace my_ops {
namespace {

constexpr int kThreads = 256;

// Packs of a thread: one of 16 bytes, or four of one element. With one, the blocks in flight cover
// the shortest stretch of memory, and reach 100 % of the copy rate; four of 16 bytes reach 96 %, a
// loop over a grid of resident blocks 92 %.
template <int kVec, typename scalar_t>
constexpr int kUnroll = kVec * sizeof(scalar_t) == kVecBytes ? 1 : 4;

// A block owns kUnroll * kThreads packs of kVec elements that lie side by side in memory; a
// thread's packs are kThreads apart, so that each load of a warp is one contiguous run.
template <bool kBackward, int kVec, typename scalar_t>
__global__ void __launch_bounds__(kThreads)
    square_kernel(const scalar_t* grad,  // [numel], read in the backward only
                  const scalar_t* x,     // [numel]
                  scalar_t* y,           // [numel], may be x; grad_x in the backward
                  int64_t numel) {
  constexpr int kPacks = kUnroll<kVec, scalar_t>;
  const int64_t first = (int64_t{blockIdx.x} * kPacks * kThreads + threadIdx.x) * kVec;
  constexpr int64_t kStep = int64_t{kThreads} * kVec;

  // Load
  Vec<scalar_t, kVec> values[kPacks];
  Vec<scalar_t, kVec> grads[kPacks];
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    values[u] = load_vec<kVec>(x, first + u * kStep, numel);
    if constexpr (kBackward) grads[u] = load_vec<kVec>(grad, first + u * kStep, numel);
  }

  // Compute and store
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      scalar_t& value = values[u].elements[e];
      if constexpr (kBackward) {
        value = square_gradient(grads[u].elements[e], value);
      } else {
        value = square_value(value);
      }
    }
    store_vec<kVec>(y, first + u * kStep, numel, values[u]);
  }
}

template <bool kBackward, int kVec, typename scalar_t>
void launch_square(const scalar_t* grad, const scalar_t* x, scalar_t* y, int64_t numel) {
  const int64_t blocks = ceil_div(numel, int64_t{kUnroll<kVec, scalar_t>} * kThreads * kVec);
  launch(square_kernel<kBackward, kVec, scalar_t>, blocks, kThreads, 0, grad, x, y, numel);
}

// 16-byte packs where every pointer allows them, else element by element (a misaligned view).
template <bool kBackward, typename scalar_t>
void square_cuda(const scalar_t* grad, const scalar_t* x, scalar_t* y, int64_t numel) {
  if (aligned_to_vec(grad, x, y)) {
    launch_square<kBackward, kVecElements<scalar_t>>(grad, x, y, numel);
  } else {
    launch_square<kBackward, 1>(grad, x, y, numel);
  }
}

}  // namespace

void square_forward_cuda(const TensorView& x, const TensorView& y) {
  dispatch(SquareTypes(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    square_cuda<false, scalar_t>(nullptr, x.const_data_ptr<scalar_t>(),
                                 y.mutable_data_ptr<scalar_t>(), x.numel());
  });
}

void square_backward_cuda(const TensorView& grad, const TensorView& x, const TensorView& grad_x) {
  dispatch(SquareFloats(), x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    square_cuda<true, scalar_t>(grad.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(),
                                grad_x.mutable_data_ptr<scalar_t>(), x.numel());
  });
}

}  // namespace my_ops
