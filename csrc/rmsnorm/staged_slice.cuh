// A slice of a row in shared memory. Device only, compute capability 9.0 and later, needs no torch.
#pragma once

#include <cstdint>

#include "rmsnorm/access.cuh"
#include "rmsnorm/mbarrier.cuh"

namespace my_ops {

// A slice of a row in shared memory, as far from a 16-byte boundary as it is in memory.
template <Access kAccess, typename x_t>
class StagedSlice {
  static constexpr int N = kChunkElements<x_t>;
  using Chunk = Vec<x_t, N>;

 public:
  __device__ __forceinline__ StagedSlice(unsigned char* shared, const x_t* slice, int chunks)
      : shared_(shared), slice_(reinterpret_cast<const unsigned char*>(slice)), chunks_(chunks) {
    if constexpr (kAccess == Access::shifted_packs) {
      shift_ = reinterpret_cast<std::uintptr_t>(slice) % kChunkBytes;
    }
  }

  // Starts the copy, in parts of `part_chunks` chunks that complete at one of `arrived` each. The
  // granule in which a part's last chunk ends comes with it, except the very last (see access.cuh).
  __device__ __forceinline__ void start_copy(MBarrier* arrived, int part_chunks) const {
    int from = 0;
    for (int part = 0; part * part_chunks < chunks_; ++part) {
      const int end = (part + 1) * part_chunks;
      const int to = (end < chunks_ ? end + (shift_ > 0 ? 1 : 0) : chunks_) * kChunkBytes;
      arrived[part].arrive_expecting(to - from);
      arrived[part].copy(shared_ + from, slice_ - shift_ + from, to - from);
      from = to;
    }
    for (unsigned byte = 0; byte < (chunks_ > 0 ? shift_ : 0); byte += sizeof(x_t)) {
      *reinterpret_cast<x_t*>(shared_ + from + byte) =
          *reinterpret_cast<const x_t*>(slice_ - shift_ + from + byte);
    }
  }

  // The same in two steps, for a barrier at which several copies count: first what the copy engine
  // does not bring, then the rest. Within a row (`goes_on`) it brings the last granule, too.
  __device__ __forceinline__ int prepare_copy(bool goes_on) const {
    const int bytes = (chunks_ + (shift_ > 0 && goes_on ? 1 : 0)) * kChunkBytes;
    for (unsigned byte = 0; byte < (goes_on ? 0 : shift_); byte += sizeof(x_t)) {
      *reinterpret_cast<x_t*>(shared_ + bytes + byte) =
          *reinterpret_cast<const x_t*>(slice_ - shift_ + bytes + byte);
    }
    if (!goes_on && shift_ > 0) sm90::fence_for_copies();  // of the slot's next tile
    return bytes;
  }
  __device__ __forceinline__ void copy(MBarrier& arrived, int bytes) const {
    arrived.copy(shared_, slice_ - shift_, bytes);
  }

  __device__ __forceinline__ Chunk get(int chunk) const {
    Chunk value[1];
    // As if others followed: what follows the last one is there, too.
    load_run<kAccess>(value, reinterpret_cast<const x_t*>(shared_ + shift_) + chunk * N, 2, 1, 0);
    return value[0];
  }
  // Of one's own chunk. Neighbours may be loading its granules, but not for its part of them.
  __device__ __forceinline__ void set(int chunk, const Chunk& value) const {
    if constexpr (kAccess == Access::packs) {
      reinterpret_cast<Chunk*>(shared_)[chunk] = value;
    } else {
      x_t* elements = reinterpret_cast<x_t*>(shared_ + shift_) + chunk * N;
#pragma unroll
      for (int j = 0; j < N; ++j) elements[j] = value.elements[j];
    }
  }

 private:
  unsigned char* shared_;
  const unsigned char* slice_;
  int chunks_;
  unsigned shift_ = 0;
};

}  // namespace my_ops
