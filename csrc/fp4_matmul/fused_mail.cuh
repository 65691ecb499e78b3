// The end of a tile of the fused kernel whose K is spread over several clusters: they send each
// other sums through memory. Device only, sm_90a, needs no torch.
//
// Of the pairs of strips that blocks of one rank have, each is stored by one of them, its owner.
// What the others send lies in slots that held kNothing before (mail_room.cuh), so that every word
// says by itself that it is here: with a fence and a flag it would be 0.3 us later. Nobody waits
// for blocks that may not run yet. An owner that has waited for long sends its own part, too, and
// leaves; the last one that arrives then stores the pair. Whoever does adds the parts in the order
// of K.
#pragma once

#include <climits>

#include "fp4_matmul/fused_store.cuh"

namespace my_ops {

constexpr int kPatience = 64;  // how often an owner looks for what others send, 0.7 us each

__device__ __forceinline__ void send_strip(uint4* to, const float4& sum) {
  const auto word = [](float x) { return min(float_bits(x), kNothing - 1); };  // also a NaN
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word(sum.x)),
               "r"(word(sum.y)), "r"(word(sum.z)), "r"(word(sum.w))
               : "memory");
}

// False where some of it is not here yet.
__device__ __forceinline__ bool look_for_strip(const uint4* from, float4& sum) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  sum = {bits_float(v.x), bits_float(v.y), bits_float(v.z), bits_float(v.w)};
  return v.x != kNothing && v.y != kNothing && v.z != kNothing && v.w != kNothing;
}

__device__ __forceinline__ float4 add_strips(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// What this thread has to do with the pairs of strips of a tile that blocks of its rank have, one a
// round. How many parts there are is known to the compiler: the code runs once, and to fetch
// instructions takes longer than to run them.
template <typename Tile, int kBlocks, int kParts>
struct TileMail {
  static constexpr int kPairs = Tile::kStrips / 2, kRounds = kPairs / kBlocks;
  static constexpr int kStripWords = kPairWords / 2;
  uint4* const slots;
  const int slot_words, part;
  int* const arrivals;  // of the warp

  __device__ __forceinline__ TileMail(const MailRoom& room, int tile, int rank, int part)
      : slots(room.slots + (tile * kPairs + rank) * kPairWords + threadIdx.x),
        slot_words(static_cast<int>(room.slot_words)),
        part(part),
        arrivals(room.arrivals + (tile * kPairs + rank) * Tile::kRowWarps + threadIdx.x / 32) {}

  __device__ __forceinline__ static int owner(int round) { return round % kParts; }

  // That of the owner is the last one.
  __device__ __forceinline__ uint4* slot(int round, int from) const {
    const int behind = from - owner(round) - 1;
    return slots + round * (kBlocks * kPairWords) +
           (behind < 0 ? behind + kParts : behind) * slot_words;
  }

  __device__ __forceinline__ void send(int round, const float4 (&strips)[2]) const {
    uint4* const to = slot(round, part);
    send_strip(to, strips[0]);
    send_strip(to + kStripWords, strips[1]);
  }

  // Gives how many have arrived before.
  __device__ __forceinline__ int arrive(int round) const {
    return atomicAdd(arrivals + round * (kBlocks * Tile::kRowWarps), 1);
  }

  // Adds to `strips`, those of this part, what the other parts have sent. False, with nothing
  // added, where that is not here after so many looks.
  __device__ __forceinline__ bool add_others(int round, int looks, float4 (&strips)[2]) const {
    float4 others[kParts - 1][2];
    const uint4* from[kParts - 1];
#pragma unroll
    for (int i = 0; i < kParts - 1; ++i) from[i] = slot(round, i < part ? i : i + 1);
    bool here = false;
#pragma unroll 1
    for (; looks > 0 && !here; --looks) {
      here = true;
#pragma unroll
      for (int i = 0; i < kParts - 1; ++i) {
        here &= look_for_strip(from[i], others[i][0]);
        here &= look_for_strip(from[i] + kStripWords, others[i][1]);
      }
      here = __all_sync(~0u, here);
    }
    if (!here) return false;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const float4 mine = strips[s];
      if constexpr (kParts == 2) {
        strips[s] = add_strips(mine, others[0][s]);  // in either order the same
      } else {
        static_assert(kParts == 3, "their order");
        const float4 front = part == 0 ? mine : others[0][s];
        const float4 middle = part == 1 ? mine : (part == 0 ? others[0][s] : others[1][s]);
        strips[s] = add_strips(add_strips(front, middle), part == 2 ? mine : others[1][s]);
      }
    }
    return true;
  }
};

// `take(round, strips)` gives the cluster's sums of a pair of strips.
template <typename Tile, int kBlocks, int kParts, typename Take>
__device__ __forceinline__ void exchange_by_mail(const FusedArguments& args, int rank, int part,
                                                 int tile, int64_t first_token,
                                                 const StripWriter& writer, const Take& take) {
  const TileMail<Tile, kBlocks, kParts> mail(args.mail, tile, rank, part);
  constexpr int kRounds = mail.kRounds;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    if (mail.owner(round) == part) continue;
    float4 strips[2];
    take(round, strips);
    mail.send(round, strips);
  }
  // A lane for each pair. What was sent before is on its way, whatever happens to this block.
  __syncwarp();
  const bool mine = lane < kRounds && mail.owner(lane) == part;
  int arrived = 0;
  if (lane < kRounds && !mine) arrived = mail.arrive(lane);

  bool of_others = false;
  uint32_t to_do = __ballot_sync(~0u, mine);
#pragma unroll 1
  while (true) {
    if (to_do == 0) {
      if (of_others) return;
      of_others = true;
      asm volatile("" : "+r"(arrived));  // not looked at before, which would wait for it
      to_do = __ballot_sync(~0u, arrived == kParts - 1);
      if (to_do == 0) return;
      __threadfence();  // then what the owners sent before they left is there
    }
    const int round = __ffs(to_do) - 1;
    to_do &= to_do - 1;
    float4 strips[2];
    take(round, strips);
    if (!mail.add_others(round, of_others ? INT_MAX : kPatience, strips)) {
      mail.send(round, strips);
      __threadfence();
      __syncwarp();
      if (__shfl_sync(~0u, lane == 0 ? mail.arrive(round) : 0, 0) < kParts - 1) continue;
      mail.add_others(round, INT_MAX, strips);
    }
    const int64_t token = first_token + 16 * (round * kBlocks + rank);
    store_all<2, 8>(args, writer, token, [&](int i) { return strips[i]; });
  }
}

}  // namespace my_ops
