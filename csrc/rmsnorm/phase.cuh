// How the launches of one rmsnorm share the work. Device only, needs no torch.
#pragma once

namespace my_ops {

// Rows too wide for a cluster run as two launches: `sums` stores the sum of every slice, `apply`
// reads x again and adds those sums up. `whole` is everything in one.
enum class Phase { whole, sums, apply };

}  // namespace my_ops
