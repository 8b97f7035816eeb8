// Sampling of an iteration in one launch, a thread block per row: penalties, temperature, top-k, min-p, top-p, the
// drawn token and log probabilities. Nothing is stored per token of the vocabulary: every pass over a row computes its
// numbers again. They are those of orca_worker/sampling.py on a CPU: logits and probabilities are float32, rounded by
// the same operations in the same order (hence the intrinsics: a compiler would join a product and a sum), with the
// exponential function of torch's softmax. Sums of probabilities, which are float64 there, are integers here. Only the
// sum by which softmax divides is rounded in another way than on a CPU, where it depends on the width of vectors.
#include "block.cuh"

constexpr Wide kGolden = 0x9E3779B97F4A7C15ull;
constexpr Wide kAbsent = ~0ull;
constexpr float kWeights = 17592186044416.0f;              // 2^44: weights of at most 1, of up to 2^19 tokens, add up
constexpr float kProbabilities = 4611686018427387904.0f;  // 2^62: exact for a float32 of at least 2^-38
constexpr int kProbabilityBits = 30, kLogprobBits = 63;

// What a row's history has of a token: flags, and in the bits above how often the token was generated.
constexpr unsigned kInPrompt = 1, kBanned = 2, kGenerated = 4;

// Parameters of a row, SAMPLE_ROW of sampling.py.
struct Row {
  Wide seed, choice, position;
  const unsigned *history;  // of each token of the vocabulary, null if no parameter needs it
  const float *bias;        // added to the logits, or null
  float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  int top_k, logprobs, bans, unused;
};

// A change of a history or bias, NOTE of sampling.py.
struct Note {
  unsigned *changed;
  Index kind, start, count, of_prompt;
};
enum { kTokens, kBans, kBias };

// Notes tokens of sequences, banned tokens and biases, a thread block per note. The first `of_prompt` tokens are of the
// prompt and the others generated. The float32 of a bias are words after the tokens.
extern "C" __launch_bounds__(kThreads) __global__ void orca_note(const Index *tokens, const Note *notes,
                                                                      Index vocabulary) {
  const Note note = notes[blockIdx.x];
  tokens += note.start;
  for (Index i = threadIdx.x; i < note.count; i += kThreads) {
    if (tokens[i] < 0 || tokens[i] >= vocabulary) continue;
    unsigned *place = note.changed + tokens[i];
    if (note.kind == kBias) {
      *place = static_cast<unsigned>(tokens[note.count + i]);
    } else if (note.kind == kBans) {
      atomicOr(place, kBanned);
    } else if (i < note.of_prompt) {
      atomicOr(place, kInPrompt);
    } else {
      atomicAdd(place, kGenerated);
    }
  }
}

// Returns the logit of a token after penalties, bias and ban, in the order of orca_worker/logit_processing.py.
__device__ inline float processed(const Row &row, const Element *logits, Index token) {
  float logit = widen(logits[token]);
  const unsigned history = row.history ? row.history[token] : 0;
  if (row.history) {
    const float generated = history / kGenerated;
    if (history & kInPrompt || generated > 0) {
      logit = logit > 0 ? logit / row.repetition_penalty : __fmul_rn(logit, row.repetition_penalty);
    }
    logit = __fsub_rn(logit, __fmul_rn(generated, row.frequency_penalty));
    if (generated > 0) logit = __fsub_rn(logit, row.presence_penalty);
  }
  if (row.bias) logit = __fadd_rn(logit, row.bias[token]);
  return row.bans && history & kBanned ? -__uint_as_float(0x7f800000u) : logit;
}

// Returns exp(x) for x <= 0 like the vectors of torch: Sleef's xexpf (https://sleef.org), 1 unit in the last place.
__device__ inline float exponential(float x) {
  if (x < -104.0f) return 0;
  const float twos = rintf(__fmul_rn(x, 1.442695040888963407359924681001892137426645954152985934135449406931f));
  const float rest = fmaf(twos, -1.428606765330187045e-06f, fmaf(twos, -0.693145751953125f, x));
  float y = fmaf(0.000198527617612853646278381f, rest, 0.00139304355252534151077271f);
  y = fmaf(y, rest, 0.00833336077630519866943359f);
  y = fmaf(y, rest, 0.0416664853692054748535156f);
  y = fmaf(y, rest, 0.166666671633720397949219f);
  y = fmaf(y, rest, 0.5f);
  y = __fadd_rn(1.0f, fmaf(__fmul_rn(rest, rest), y, rest));
  const int exponent = static_cast<int>(twos), half = exponent >> 1;  // two factors: results may be subnormal
  return y * __uint_as_float((half + 127) << 23) * __uint_as_float((exponent - half + 127) << 23);
}

// SplitMix64's finaliser over the three counters in turn: the noise of `uniform` in sampling.py, as a fraction of 2^64.
__device__ inline Wide noise(const Row &row) {
  const Wide counters[] = {row.seed, row.choice, row.position};
  Wide state = 0;
  for (int i = 0; i < 3; ++i) {
    state += counters[i] * kGolden + kGolden;
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ state >> 27) * 0x94D049BB133111EBull;
    state ^= state >> 31;
  }
  return state >> 11 << 11;  // a float64 has 53 bits
}

// Keys of which the largest is that of the token that argmax returns: NaN before numbers, of equal ones the first.
__device__ inline Wide greedy_key(float logit, Index token) {
  const unsigned bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  const unsigned order = logit != logit ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<Wide>(order) << 32 | (0xffffffffu - static_cast<unsigned>(token));
}
__device__ inline Index token_of(Wide key) { return 0xffffffffu - static_cast<unsigned>(key); }

__device__ inline bool finite(float value) { return fabsf(value) <= -kLowest; }

// Returns the sum of the weights exp(x - the row's largest x) as softmax rounds it.
template <class Weight>
__device__ float softmax_sum(Weight weight, Index size) {
  const Wide sum = row_sum([&](Index i) { return static_cast<Wide>(weight(i) * kWeights); }, size);
  return static_cast<float>(sum) / kWeights;
}

// Draws a token of a row whose largest logit is `top`.
__device__ inline Index draw(const Row &row, const Element *logits, Index size, float top) {
  top /= row.temperature;
  if (!finite(top)) return size - 1;  // softmax would be NaN
  const auto weight = [&](Index i) {
    return exponential(__fsub_rn(processed(row, logits, i) / row.temperature, top));
  };
  const float scale = 1.0f / softmax_sum(weight, size);
  const auto probability = [&](Index i) { return __fmul_rn(weight(i), scale); };
  const auto mass = [&](float p) { return static_cast<Wide>(p * kProbabilities); };
  const auto bits = [](float p) { return static_cast<Wide>(__float_as_uint(p)); };
  float least = 0;  // of the kept tokens' probabilities
  if (row.top_k > 0 && row.top_k < size) {
    const auto item = [&](Index i) {
      const float p = probability(i);
      return Item{bits(p), p > 0};
    };
    const Wide key = threshold(item, size, kProbabilityBits, [&](Wide) { return static_cast<Wide>(row.top_k); });
    least = __uint_as_float(static_cast<unsigned>(key));
  }
  if (row.min_p > 0) least = fmaxf(least, __fmul_rn(row.min_p, scale));  // the largest weight is 1
  if (row.top_p < 1) {
    const auto item = [&](Index i) {
      const float p = probability(i);
      return Item{bits(p), p < least ? 0 : mass(p)};
    };
    const auto part = [&](Wide kept) {
      return static_cast<Wide>(ceil(static_cast<double>(row.top_p) * static_cast<double>(kept)));
    };
    const Wide key = threshold(item, size, kProbabilityBits, part);
    least = fmaxf(least, __uint_as_float(static_cast<unsigned>(key)));
  }
  const auto kept = [&](Index i) {
    const float p = probability(i);
    return p < least ? 0 : mass(p);
  };
  return place_of(kept, size, noise(row));
}

// Writes the log probabilities of the model's logits: of `token`, and of the likeliest tokens in their order, the lower
// ids first among equal ones. A result is a token, and the bits of a float32 in the low half.
__device__ inline void logprobs(const Row &row, const Element *logits, Index size, float top, Index token,
                                Wide *results, Index stride) {
  __shared__ unsigned taken;
  __shared__ Wide keys[kThreads];
  const Index count = row.logprobs < size ? row.logprobs : size;
  const auto word = [](Index place, float value) { return static_cast<Wide>(place) << 32 | __float_as_uint(value); };
  if (!finite(top)) {  // all of them are NaN
    if (threadIdx.x == 0) results[0] = word(token, __uint_as_float(0x7fc00000u));
    if (threadIdx.x < count) results[(1 + threadIdx.x) * stride] = kAbsent;
    return;
  }
  const float sum = softmax_sum([&](Index i) { return exponential(widen(logits[i]) - top); }, size);
  const float log_sum = logf(sum);
  const auto logprob = [&](Index i) { return widen(logits[i]) - top - log_sum; };
  if (threadIdx.x == 0) results[0] = word(token, logprob(token));
  if (count == 0) return;
  const auto key = [&](Index i) {
    const Wide order = 0x7fffffffu - __float_as_uint(fabsf(logprob(i)));
    return order << 32 | (0xffffffffu - static_cast<unsigned>(i));
  };
  const auto item = [&](Index i) { return Item{key(i), 1}; };
  const Wide least = threshold(item, size, kLogprobBits, [&](Wide) { return static_cast<Wide>(count); });
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  for (Index i = threadIdx.x; i < size; i += kThreads) {
    if (key(i) >= least) keys[atomicAdd(&taken, 1)] = key(i);
  }
  __syncthreads();
  if (threadIdx.x >= count) return;
  const Wide own = keys[threadIdx.x];
  Index rank = 0;
  for (Index other = 0; other < count; ++other) rank += keys[other] > own;
  const float value = 0.0f - __uint_as_float(0x7fffffffu - static_cast<unsigned>(own >> 32));
  results[(1 + rank) * stride] = word(token_of(own), value);
}

// Samples a token of each row of `logits` [gridDim.x, size]. A row's results are `stride` words apart: the token, and if
// the row asks for log probabilities those of the token and of its likeliest ones.
extern "C" __launch_bounds__(kThreads) __global__ void orca_sample(const Element *logits, const Row *rows,
                                                                        Wide *results, Index size, Index stride) {
  const Row row = rows[blockIdx.x];
  logits += blockIdx.x * size;
  results += blockIdx.x;
  const auto key = [&](Index i) { return greedy_key(processed(row, logits, i), i); };
  Index likeliest = token_of(largest(key, size)), token = likeliest;
  if (row.temperature > 0) token = draw(row, logits, size, processed(row, logits, likeliest));
  if (threadIdx.x == 0) results[0] = token;
  if (row.logprobs < 0) return;
  if (row.history || row.bias) {
    likeliest = token_of(largest([&](Index i) { return greedy_key(widen(logits[i]), i); }, size));
  }
  logprobs(row, logits, size, widen(logits[likeliest]), token, results + stride, stride);
}
